-- The terminal state, guarded by the token. Repeating the winning call is 'ended', which its caller takes for success.
-- ARGV: id, token, state, output, error. Returns {'ok' | 'stale' | 'ended' | 'missing'}.
local id, token, state, output, problem = unpack(ARGV)
local standing = check(id, token)
if standing == 'ok' then finish(id, state, output, problem) end
return {standing}
