-- Ends waiting jobs whose deadlines have passed, and rings for running ones, whose drivers then stop them.
-- ARGV: error. Returns {ms until the next deadline, or -1}.
local now = now_ms()
for _, id in ipairs(redis.call('ZRANGE', P .. 'deadlines', '-inf', whole(now), 'BYSCORE')) do
  if redis.call('HGET', job_key(id), 'state') == QUEUED then
    finish(id, FAILED, '', ARGV[1])
  else
    ring('c:' .. id)
  end
end
local following = redis.call('ZRANGE', P .. 'deadlines', '(' .. whole(now), '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
return {following[2] and math.max(0, tonumber(following[2]) - now) or -1}
