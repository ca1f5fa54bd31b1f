-- Takes over one running job whose lease ran out: same attempt, same worker, same run, a higher token.
-- ARGV: lease in ms. Returns {id, token, store, record, now} or {}.
for _, id in ipairs(redis.call('ZRANGE', P .. 'leases', '-inf', whole(now_ms()), 'BYSCORE', 'LIMIT', 0, 16)) do
  if redis.call('HGET', job_key(id), 'state') == RUNNING then
    local token = next_token()
    local worker = redis.call('HGET', job_key(id), 'worker')
    redis.call('HSET', job_key(id), 'token', token)
    redis.call('HSET', P .. 'worker:' .. worker, 'job', id, 'token', token)
    lease(id, ARGV[1])
    return {id, token, redis.call('GET', P .. 'store'), record(id), whole(now_ms())}
  end
  redis.call('ZREM', P .. 'leases', id)
end
return {}
