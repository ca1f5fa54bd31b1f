-- Prolongs a lease. ARGV: id, token, lease in ms. Returns {'ok' | 'stale' | 'ended' | 'missing', wish}.
local id, token, lease_ms = unpack(ARGV)
local standing = check(id, token)
if standing == 'ok' then lease(id, lease_ms) end
return {standing, wish(id)}
