-- Forgets ended jobs, oldest first: those that ended long ago, and more of them while outputs take too much room. Jobs that
-- have just ended stay, so that their files can be fetched.
-- ARGV: retention in ms, most jobs, most bytes of outputs or 0, ms that an ended job stays in any case. Returns their ids.
local retention_ms, count, most_bytes, spared_ms = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local now = now_ms()
local bytes = tonumber(redis.call('GET', P .. 'output_bytes') or '0')
local before = whole(now - math.min(spared_ms, retention_ms))
local ended = redis.call('ZRANGE', P .. 'finished', '-inf', before, 'BYSCORE', 'LIMIT', 0, count, 'WITHSCORES')
local ids = {}
for place = 1, #ended, 2 do
  local id = ended[place]
  local has_room = most_bytes == 0 or bytes <= most_bytes
  if has_room and tonumber(ended[place + 1]) > now - retention_ms then break end
  local known = redis.call('HMGET', job_key(id), 'request_id', 'state', 'bytes')
  if known[1] and known[1] ~= '' then redis.call('DEL', P .. 'request:' .. known[1]) end
  if known[2] then redis.call('ZREM', P .. 'state:' .. known[2], id) end
  if known[3] then bytes = redis.call('DECRBY', P .. 'output_bytes', known[3]) end
  redis.call('DEL', job_key(id), P .. 'events:' .. id)
  redis.call('ZREM', P .. 'finished', id)
  redis.call('ZREM', P .. 'dead', id)
  ids[#ids + 1] = id
end
return ids
