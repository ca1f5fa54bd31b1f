-- Prolongs (lease > 0) or ends an operator's claim. ARGV: worker id, token, lease in ms. Returns {'ok' | 'stale'}.
local worker, token, lease_ms = unpack(ARGV)
local key = P .. 'operator:' .. worker
if redis.call('GET', key) ~= token then return {'stale'} end
if lease_ms == '0' then
  redis.call('DEL', key)
  ring('q')
else
  redis.call('PEXPIRE', key, lease_ms)
end
return {'ok'}
