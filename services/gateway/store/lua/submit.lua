-- Record, queue entry and idempotency key in one step.
-- ARGV: random suffix of the id, request, kind, request id or '', digest of the request, most waiting jobs,
-- terms, deadline in ms from now or 0
-- Returns {'created' | 'known', id, record}, {'reused', id}, {'full', waiting}.
local suffix, request, kind, request_id, digest, limit, terms, deadline_ms = unpack(ARGV)
local request_key = P .. 'request:' .. request_id
if request_id ~= '' then
  local first = redis.call('HMGET', request_key, 'job', 'digest')
  if first[1] then
    if first[2] ~= digest then return {'reused', first[1]} end
    return {'known', first[1], record(first[1])}
  end
end
local waiting = redis.call('ZCARD', P .. 'queue')
if waiting >= tonumber(limit) then return {'full', waiting} end
local now = now_ms()
local id = string.format('%012x', now) .. suffix
local order = redis.call('INCR', P .. 'order')
redis.call('HSET', job_key(id), 'request', request, 'created_ms', whole(now), 'queued_ms', whole(now), 'attempts', '0',
  'order', whole(order), 'kind', kind, 'request_id', request_id)
if terms ~= '' then redis.call('HSET', job_key(id), 'terms', terms) end
if tonumber(deadline_ms) > 0 then
  local deadline = whole(now + tonumber(deadline_ms))
  redis.call('HSET', job_key(id), 'deadline_ms', deadline)
  redis.call('ZADD', P .. 'deadlines', deadline, id)
  if redis.call('ZRANK', P .. 'deadlines', id) == 0 then ring('d') end
end
if request_id ~= '' then redis.call('HSET', request_key, 'job', id, 'digest', digest) end
redis.call('ZADD', P .. 'queue', order, id)
redis.call('ZADD', P .. 'queue:' .. kind, order, id)
enter(id, QUEUED)
ring('q')
return {'created', id, record(id)}
