-- Keeps progress of the run, each once, in one step. ARGV: id, token, then pairs: sequence within the run or 0 for the
-- gateway's own, progress. Returns as renew does.
local id, token = ARGV[1], ARGV[2]
local standing = check(id, token)
if standing == 'ok' then
  local key = job_key(id)
  local kept = tonumber(redis.call('HGET', key, 'run_seq') or '0')
  local last, newest = nil, kept
  for place = 3, #ARGV, 2 do
    local run_sequence = tonumber(ARGV[place])
    if run_sequence == 0 or run_sequence > newest then
      newest = math.max(newest, run_sequence)
      last = ARGV[place + 1]
      tell(id, 'progress', last)
    end
  end
  if newest > kept then redis.call('HSET', key, 'run_seq', whole(newest)) end
  if last then
    redis.call('HSET', key, 'progress', last)
    ring('e:' .. id)
  end
end
return {standing, wish(id)}
