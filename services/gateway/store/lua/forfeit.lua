-- Lets others adopt a running job at once, instead of after its lease. ARGV: id, token.
local standing = check(ARGV[1], ARGV[2])
if standing == 'ok' then
  redis.call('ZADD', P .. 'leases', 0, ARGV[1])
  ring('l')
end
return {standing}
