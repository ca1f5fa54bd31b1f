-- The terminal state, guarded by the token. Repeating the winning call is 'ended', which its caller takes for success.
-- A job past its deadline can't succeed any more.
-- ARGV: id, token, state, output, error, bytes of the file, then progress not kept yet, as for append. Returns {'ok' | 'late' | 'stale' | 'ended' | 'missing'}.
local id, token, state, output, problem, bytes = unpack(ARGV)
local standing = check(id, token)
if standing == 'ok' and state == SUCCEEDED and is_overdue(id) then return {'late'} end
if standing == 'ok' then
  keep(id, 7)
  finish(id, state, output, problem, state == SUCCEEDED and bytes or nil)
end
return {standing}
