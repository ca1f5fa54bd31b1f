-- Takes the next job for a free worker: job and worker together, under one fencing token.
-- The head of the line goes first once it has been passed over for `patience`; before that, the first job of the kind
-- that the worker has loaded, unless its rank is below the head's; then the first job of a kind that no other worker has
-- loaded.
-- A job whose deadline has passed ends here instead of starting.
-- ARGV: worker id, kind loaded there or '', patience in ms, lease in ms, candidate name of the store, error of a job past
-- its deadline, kinds loaded elsewhere...
-- Returns {'claimed', id, token, store, record, now}, {'held'}, {'none', ms until the head may be taken or -1}.
local worker, loaded, patience_ms, lease_ms, candidate, late = unpack(ARGV, 1, 6)
local LOOK_AHEAD = 64
if redis.call('EXISTS', P .. 'worker:' .. worker, P .. 'operator:' .. worker) > 0 then return {'held'} end
for _, id in ipairs(redis.call('ZRANGE', P .. 'deadlines', '-inf', whole(now_ms()), 'BYSCORE')) do
  if redis.call('HGET', job_key(id), 'state') == QUEUED then finish(id, FAILED, '', late) end
end
local head, place = unpack(redis.call('ZRANGE', P .. 'queue', 0, 0, 'WITHSCORES'))
if not head then return {'none', -1} end
local now = now_ms()
local passed_ms = redis.call('HGET', job_key(head), 'passed_ms')
local passed_for = now - tonumber(passed_ms or now)
local id = nil
if passed_for >= tonumber(patience_ms) then id = head end
if not id and loaded ~= '' then
  local first = redis.call('ZRANGE', P .. 'queue:' .. loaded, 0, 0, 'WITHSCORES')
  if first[1] and rank_of(first[2]) <= rank_of(place) then id = first[1] end
end
if not id then
  local elsewhere = {}
  for index = 7, #ARGV do elsewhere[ARGV[index]] = true end
  for _, waiting in ipairs(redis.call('ZRANGE', P .. 'queue', 0, LOOK_AHEAD - 1)) do
    if not elsewhere[redis.call('HGET', job_key(waiting), 'kind')] then id = waiting; break end
  end
end
if not id and loaded ~= '' then id = redis.call('ZRANGE', P .. 'queue:' .. loaded, 0, 0)[1] end
if id ~= head and not passed_ms then redis.call('HSET', job_key(head), 'passed_ms', whole(now)) end
if not id then return {'none', math.max(0, tonumber(patience_ms) - passed_for)} end
-- Time in line goes on to where its head stands.
local virtual = math.floor(tonumber(place) / RANKS)
if virtual > tonumber(redis.call('GET', P .. 'virtual') or '0') then redis.call('SET', P .. 'virtual', whole(virtual)) end
redis.call('SET', P .. 'store', candidate, 'NX')
local token = next_token()
leave_queue(id)
redis.call('HINCRBY', job_key(id), 'attempts', 1)
redis.call('HSET', job_key(id), 'worker', worker, 'token', token, 'run', id .. '-' .. token, 'run_seq', '0',
  'started_ms', whole(now_ms()))
redis.call('HDEL', job_key(id), 'progress')
redis.call('HSET', P .. 'worker:' .. worker, 'job', id, 'token', token)
lease(id, lease_ms)
enter(id, RUNNING)
return {'claimed', id, token, redis.call('GET', P .. 'store'), record(id), whole(now_ms())}
