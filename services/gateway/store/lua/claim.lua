-- Takes the next job for a free worker, and waiting jobs of the same shape with it: jobs and worker together, under one
-- fencing token.
-- The head of the line goes first once it has been passed over for `patience`; before that, the first job of the kind
-- that the worker has loaded, unless its rank is below the head's; then the first job of a kind that no other worker has
-- loaded.
-- Those that go with it are taken in the order of the line. None is taken that must run alone, whose rank is below that
-- of the first or of the head of the line, or that would go before a head whose patience is at its end.
-- A job whose deadline has passed ends here instead of starting.
-- ARGV: worker id, kind loaded there or '', patience in ms, lease in ms, candidate name of the store, error of a job past
-- its deadline, how many jobs the loaded plan has room for by size ("1024x1024=4 512x512=8"), kinds loaded elsewhere...
-- Returns {'claimed', token, store, now, id, record, id, record...}, {'held'}, {'none', ms until the head may be taken or -1}.
local worker, loaded, patience_ms, lease_ms, candidate, late, rooms = unpack(ARGV, 1, 7)
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
  for index = 8, #ARGV do elsewhere[ARGV[index]] = true end
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
local answer = {'claimed', token, redis.call('GET', P .. 'store'), whole(now_ms())}
local run = id .. '-' .. token

local function take(taken)
  leave_queue(taken)
  redis.call('HINCRBY', job_key(taken), 'attempts', 1)
  redis.call('HSET', job_key(taken), 'worker', worker, 'run', run, 'run_seq', '0', 'started_ms', whole(now_ms()))
  redis.call('HDEL', job_key(taken), 'progress', 'unheard')
  hold(taken, worker, token, lease_ms)
  enter(taken, RUNNING)
  answer[#answer + 1] = taken
  answer[#answer + 1] = record(taken)
end

local kind, shape, alone, own_place = unpack(redis.call('HMGET', job_key(id), 'kind', 'shape', 'alone', 'place'))
take(id)
local room = 1
if kind == loaded and shape and shape ~= '' and not alone then
  room = tonumber(string.match(' ' .. rooms .. ' ', ' ' .. string.match(shape, '^%S+') .. '=(%d+) ') or '1')
end
if room == 1 then return answer end

-- True if the waiting job may go before the head of the line, which then counts as passed over.
local function may_pass(waiting, rank)
  local first, first_place = unpack(redis.call('ZRANGE', P .. 'queue', 0, 0, 'WITHSCORES'))
  if first == waiting then return true end
  local since = redis.call('HGET', job_key(first), 'passed_ms')
  if rank > rank_of(first_place) or now - tonumber(since or now) >= tonumber(patience_ms) then return false end
  if not since then redis.call('HSET', job_key(first), 'passed_ms', whole(now)) end
  return true
end

local line = redis.call('ZRANGE', P .. 'queue:' .. kind, 0, LOOK_AHEAD - 1, 'WITHSCORES')
for index = 1, #line, 2 do
  if #answer >= 4 + 2 * room then break end
  local waiting, rank = line[index], rank_of(line[index + 1])
  local held = redis.call('HMGET', job_key(waiting), 'shape', 'alone')
  local is_alike = held[1] == shape and not held[2] and rank <= rank_of(own_place)
  if is_alike and may_pass(waiting, rank) then take(waiting) end
end
return answer
