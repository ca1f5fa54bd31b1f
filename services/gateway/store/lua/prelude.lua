-- What every script shares. Numbers become text by whole(): Lua's own conversion writes 1.7e+12.
local P = 'darkroom:'
local QUEUED, RUNNING, SUCCEEDED, FAILED, CANCELLED = '1', '2', '3', '4', '5'
local EVENTS_KEPT = 1000
local EVENTS_KEPT_AFTER_END_MS = 3600 * 1000

local function whole(number) return string.format('%.0f', number) end

local function now_ms()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function job_key(id) return P .. 'job:' .. id end

local function ring(text) redis.call('PUBLISH', P .. 'bell', text) end

-- Appends one event under the job's next sequence number, which is also the entry's id.
local function tell(id, ...)
  local sequence = whole(redis.call('HINCRBY', job_key(id), 'seq', 1))
  redis.call('XADD', P .. 'events:' .. id, 'MAXLEN', '~', EVENTS_KEPT, sequence .. '-0', ...)
  return sequence
end

-- Moves a job to a state, keeps the lists, and tells the change.
local function enter(id, state)
  local key = job_key(id)
  local old = redis.call('HGET', key, 'state')
  if old then redis.call('ZREM', P .. 'state:' .. old, id) end
  redis.call('ZADD', P .. 'state:' .. state, 0, id)
  redis.call('HSET', key, 'state', state)
  local told = redis.call('HMGET', key, 'attempts', 'worker', 'started_ms')
  local sequence = tell(id, 'state', state, 'attempts', told[1] or '0', 'worker', told[2] or '', 'started_ms',
    told[3] or '')
  redis.call('HSET', key, 'state_seq', sequence)
  ring('e:' .. id)
end

-- The line is fair by virtual time: each flow, a tenant's jobs of one rank, is a clock that goes on by a step with every
-- job, and never lags behind the head of the line. A job's place is its clock's time, four ranks apart within it.
-- Ranks: 0 high, 1 normal, 2 low.
local RANKS = 4
local STEPS = {[0] = 1, 8, 64}

local function rank_of(place) return tonumber(place) % RANKS end

local function tenant_of(id) return redis.call('HGET', job_key(id), 'tenant') or 'default' end

local function next_place(tenant, rank)
  local flow = rank .. ':' .. tenant
  local now = tonumber(redis.call('GET', P .. 'virtual') or '0')
  local time = math.max(now, tonumber(redis.call('HGET', P .. 'flows', flow) or '0'))
  redis.call('HSET', P .. 'flows', flow, whole(time + STEPS[rank]))
  return time * RANKS + rank
end

local function stand_in_line(id, place, kind, tenant)
  redis.call('ZADD', P .. 'queue', place, id)
  redis.call('ZADD', P .. 'queue:' .. kind, place, id)
  redis.call('HINCRBY', P .. 'waiting', tenant, 1)
end

local function leave_queue(id)
  if redis.call('ZREM', P .. 'queue', id) == 0 then return end
  redis.call('ZREM', P .. 'queue:' .. redis.call('HGET', job_key(id), 'kind'), id)
  local tenant = tenant_of(id)
  if redis.call('HINCRBY', P .. 'waiting', tenant, -1) <= 0 then
    redis.call('HDEL', P .. 'waiting', tenant)
    redis.call('HDEL', P .. 'flows', '0:' .. tenant, '1:' .. tenant, '2:' .. tenant)
  end
end

-- Why one more job may not wait: nil where it may.
local function refusal(tenant, most, most_of_tenant)
  local waiting = redis.call('ZCARD', P .. 'queue')
  if waiting >= tonumber(most) then return {'full', waiting, ''} end
  local own = tonumber(redis.call('HGET', P .. 'waiting', tenant) or '0')
  if own >= tonumber(most_of_tenant) then return {'full', own, tenant} end
end

local function free_worker(id)
  redis.call('ZREM', P .. 'leases', id)
  local worker = redis.call('HGET', job_key(id), 'worker')
  -- The worker is free once the last job of its batch has left it.
  if worker then redis.call('HDEL', P .. 'worker:' .. worker, id) end
  if redis.call('EXISTS', P .. 'queue') == 1 then ring('q') end
end

-- The one way into a terminal state. Callers have checked that the job is in none. `bytes` is the size of its file.
local function finish(id, state, output, problem, bytes)
  local key = job_key(id)
  local now = now_ms()
  leave_queue(id)
  free_worker(id)
  redis.call('ZREM', P .. 'deadlines', id)
  redis.call('HSET', key, 'finished_ms', whole(now), 'output', output, 'error', problem)
  redis.call('ZADD', P .. 'finished', now, id)
  if bytes then
    redis.call('HSET', key, 'bytes', bytes)
    redis.call('INCRBY', P .. 'output_bytes', bytes)
  end
  redis.call('HINCRBY', key, 'terminal_writes', 1)
  -- A record is kept for long: what only a waiting or running job needs goes. A dead one may be re-driven.
  redis.call('HDEL', key, 'run', 'run_seq', 'unheard', 'passed_ms', 'cancel', 'alone')
  if state ~= FAILED then redis.call('HDEL', key, 'place', 'kind', 'shape') end
  enter(id, state)
  redis.call('PEXPIRE', P .. 'events:' .. id, EVENTS_KEPT_AFTER_END_MS)
end

local function is_terminal(state) return state == SUCCEEDED or state == FAILED or state == CANCELLED end

-- Keeps the progress in ARGV from `first` on, each once: pairs of sequence within the run, or 0 for the gateway's own, and
-- progress. Returns whether there was any that was not kept before.
local function keep(id, first)
  local key = job_key(id)
  local kept = tonumber(redis.call('HGET', key, 'run_seq') or '0')
  local last, newest = nil, kept
  for place = first, #ARGV, 2 do
    local run_sequence = tonumber(ARGV[place])
    if run_sequence == 0 or run_sequence > newest then
      newest = math.max(newest, run_sequence)
      last = ARGV[place + 1]
      tell(id, 'progress', last)
    end
  end
  if newest > kept then redis.call('HSET', key, 'run_seq', whole(newest)) end
  if last then redis.call('HSET', key, 'progress', last) end
  return last ~= nil
end

-- 'ok' when `token` is the newest claim of a running job; else what it is instead.
local function check(id, token)
  local held = redis.call('HMGET', job_key(id), 'state', 'token')
  if not held[1] then return 'missing' end
  if held[2] ~= token then return 'stale' end
  if held[1] ~= RUNNING then return is_terminal(held[1]) and 'ended' or 'stale' end
  return 'ok'
end

local function is_overdue(id)
  local deadline = redis.call('HGET', job_key(id), 'deadline_ms')
  return deadline and tonumber(deadline) <= now_ms()
end

-- Why a running job should stop: 'cancel', 'deadline', or ''.
local function wish(id)
  if redis.call('HGET', job_key(id), 'cancel') then return 'cancel' end
  return is_overdue(id) and 'deadline' or ''
end

local function next_token() return whole(redis.call('INCR', P .. 'token')) end

local function lease(id, lease_ms) redis.call('ZADD', P .. 'leases', now_ms() + tonumber(lease_ms), id) end

-- What was answered to the first submit with this request id; nil where there was none.
local function answer_before(request_id, digest)
  if request_id == '' then return nil end
  local first = redis.call('HMGET', P .. 'request:' .. request_id, 'job', 'digest')
  if not first[1] then return nil end
  if first[2] ~= digest then return {'reused', first[1]} end
  return {'known', first[1], redis.call('HGETALL', job_key(first[1]))}
end

-- Makes a job that waits: record, queue entry, idempotency key. Returns its id.
local function accept(job)
  local now = now_ms()
  local id = string.format('%012x', now) .. job.suffix
  local place = next_place(job.tenant, job.rank)
  redis.call('HSET', job_key(id), 'request', job.request, 'created_ms', whole(now), 'attempts', '0', 'place',
    whole(place), 'kind', job.kind, 'shape', job.shape, 'request_id', job.request_id)
  if job.tenant ~= 'default' then redis.call('HSET', job_key(id), 'tenant', job.tenant) end
  if job.terms ~= '' then redis.call('HSET', job_key(id), 'terms', job.terms) end
  if job.deadline_ms > 0 then
    local deadline = whole(now + job.deadline_ms)
    redis.call('HSET', job_key(id), 'deadline_ms', deadline)
    redis.call('ZADD', P .. 'deadlines', deadline, id)
    if redis.call('ZRANK', P .. 'deadlines', id) == 0 then ring('d') end
  end
  if job.request_id ~= '' then
    redis.call('HSET', P .. 'request:' .. job.request_id, 'job', id, 'digest', job.digest)
  end
  stand_in_line(id, place, job.kind, job.tenant)
  enter(id, QUEUED)
  ring('q')
  return id
end

-- Gives a job to a worker, or to another gateway on the same one.
local function hold(id, worker, token, lease_ms)
  redis.call('HSET', job_key(id), 'token', token)
  redis.call('HSET', P .. 'worker:' .. worker, id, token)
  lease(id, lease_ms)
end

local function record(id) return redis.call('HGETALL', job_key(id)) end
