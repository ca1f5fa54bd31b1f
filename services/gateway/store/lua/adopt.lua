-- Takes over the running jobs of one worker, of which one's lease ran out: same attempts, same worker, same runs, one
-- higher token. A batch is adopted whole, for the worker obeys only the newest token.
-- Whoever had it may be late, and store a file all the same: the housekeeper looks there later.
-- Adoptions before anything was heard of the run are counted: nobody can tell whether it was ever begun.
-- ARGV: lease in ms, '1' for jobs past their deadline only, whose drivers have nothing to store. Returns {token, store, now, id, record, id, record...} or {}.
local function take(id, worker, token, answer)
  hold(id, worker, token, ARGV[1])
  redis.call('ZADD', P .. 'strays', now_ms(), id)
  if redis.call('HGET', job_key(id), 'run_seq') == '0' then redis.call('HINCRBY', job_key(id), 'unheard', 1) end
  answer[#answer + 1] = id
  answer[#answer + 1] = record(id)
end
for _, id in ipairs(redis.call('ZRANGE', P .. 'leases', '-inf', whole(now_ms()), 'BYSCORE', 'LIMIT', 0, 256)) do
  if redis.call('HGET', job_key(id), 'state') ~= RUNNING then
    redis.call('ZREM', P .. 'leases', id)
  elseif ARGV[2] ~= '1' or is_overdue(id) then
    local token = next_token()
    local worker = redis.call('HGET', job_key(id), 'worker')
    local answer = {token, redis.call('GET', P .. 'store'), whole(now_ms())}
    take(id, worker, token, answer)
    for _, other in ipairs(redis.call('HKEYS', P .. 'worker:' .. worker)) do
      if other ~= id then take(other, worker, token, answer) end
    end
    return answer
  end
end
return {}
