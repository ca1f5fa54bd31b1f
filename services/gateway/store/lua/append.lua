-- Keeps progress of the run, each once, in one step. ARGV: id, token, then pairs: sequence within the run or 0 for the
-- gateway's own, progress. Returns as renew does.
local id, token = ARGV[1], ARGV[2]
local standing = check(id, token)
if standing == 'ok' and keep(id, 3) then ring('e:' .. id) end
return {standing, wish(id)}
