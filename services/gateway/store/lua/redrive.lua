-- Makes a new job of a dead one, once. The dead job leaves the list of the dead and keeps the new one's name.
-- ARGV: the dead job, random suffix of the new id, request id or '', digest, most waiting jobs, most waiting jobs
-- of a tenant
-- Returns {'created' | 'known', id, record}, {'reused', id}, {'full', waiting, tenant or ''}, {'not dead', state}, {'missing'}.
local dead, suffix, request_id, digest, most, most_of_tenant = unpack(ARGV)
local before = answer_before(request_id, digest)
if before then return before end
local held = redis.call('HMGET', job_key(dead), 'state', 'redriven_as', 'request', 'kind', 'terms', 'deadline_ms',
  'created_ms', 'place', 'shape')
if not held[1] then return {'missing'} end
if held[2] and redis.call('EXISTS', job_key(held[2])) == 1 then return {'known', held[2], record(held[2])} end
if not redis.call('ZSCORE', P .. 'dead', dead) then return {'not dead', held[1]} end
local tenant = tenant_of(dead)
local refused = refusal(tenant, most, most_of_tenant)
if refused then return refused end
local id = accept({suffix = suffix, request = held[3], kind = held[4], request_id = request_id, digest = digest,
  terms = held[5] or '', deadline_ms = held[6] and tonumber(held[6]) - tonumber(held[7]) or 0,
  rank = held[8] and rank_of(held[8]) or 1, tenant = tenant, shape = held[9] or ''})
-- It may do again what it died of: no other job's engine is put at risk.
redis.call('HSET', job_key(id), 'alone', '1')
redis.call('HSET', job_key(id), 'redriven_from', dead)
redis.call('HSET', job_key(dead), 'redriven_as', id)
redis.call('ZREM', P .. 'dead', dead)
return {'created', id, record(id)}
