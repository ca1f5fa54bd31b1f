-- Names the next run of the same attempt, after a fallback. ARGV: id, token, run. Returns as renew does.
local id, token, run = unpack(ARGV)
local standing = check(id, token)
if standing == 'ok' then redis.call('HSET', job_key(id), 'run', run, 'run_seq', '0') end
return {standing, wish(id)}
