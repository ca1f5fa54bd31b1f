-- Gives a running job back. What happened counts: 'released' burns no attempt, 'lost' is a lost worker, 'death' an
-- engine that died under a living supervisor, 'suspect' one that died while it made several jobs' pictures together:
-- which of them ended it nobody knows, so each is tried alone from now on, and charged nothing yet. A job that somebody
-- wants cancelled, or whose deadline has passed, ends instead.
-- ARGV: id, token, what happened, most lost workers, most deaths, error when cancelled, error when a bound is reached,
-- error when the deadline has passed, evidence of what happened.
-- A job that reached a bound is dead: it is listed, and can be re-driven.
-- Returns {'queued' | 'late' | 'failed' | 'cancelled' | 'stale' | 'ended' | 'missing'}.
local id, token, happened, most_lost, most_deaths, cancelled, failed, late, evidence = unpack(ARGV)
local standing = check(id, token)
if standing ~= 'ok' then return {standing} end
local key = job_key(id)
-- Messages that follow each other are one message with all that they hold.
if happened ~= 'released' then
  redis.call('HSET', key, 'failed_attempts', (redis.call('HGET', key, 'failed_attempts') or '') .. evidence)
end
local function die()
  redis.call('ZADD', P .. 'dead', 0, id)
  finish(id, FAILED, '', failed)
  return {'failed'}
end
if redis.call('HGET', key, 'cancel') then
  finish(id, CANCELLED, '', cancelled)
  return {'cancelled'}
end
if is_overdue(id) then
  finish(id, FAILED, '', late)
  return {'late'}
end
if happened == 'released' then
  redis.call('HINCRBY', key, 'attempts', -1)
elseif happened == 'lost' and redis.call('HINCRBY', key, 'lost', 1) >= tonumber(most_lost) then
  return die()
elseif happened == 'death' and redis.call('HINCRBY', key, 'deaths', 1) >= tonumber(most_deaths) then
  return die()
end
if happened == 'suspect' or happened == 'death' then redis.call('HSET', key, 'alone', '1') end
free_worker(id)
redis.call('HDEL', key, 'progress', 'started_ms')
-- It has waited enough: whichever worker is free next takes it, loaded or not.
redis.call('HSET', key, 'passed_ms', '0')
local held = redis.call('HMGET', key, 'place', 'kind')
stand_in_line(id, held[1] or '0', held[2], tenant_of(id))
enter(id, QUEUED)
ring('q')
return {'queued'}
