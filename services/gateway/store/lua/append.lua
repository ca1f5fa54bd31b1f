-- Keeps one progress of the run, once. ARGV: id, token, sequence within the run or 0 for the gateway's own, progress.
-- Returns as renew does.
local id, token, run_sequence, progress = unpack(ARGV)
local standing = check(id, token)
if standing == 'ok' then
  local key = job_key(id)
  local kept = tonumber(redis.call('HGET', key, 'run_seq') or '0')
  if run_sequence == '0' or tonumber(run_sequence) > kept then
    if run_sequence ~= '0' then redis.call('HSET', key, 'run_seq', run_sequence) end
    redis.call('HSET', key, 'progress', progress)
    tell(id, 'progress', progress)
    ring('e:' .. id)
  end
end
return {standing, redis.call('HGET', job_key(id), 'cancel') or ''}
