-- Forgets jobs that ended long ago. ARGV: retention in ms, most jobs. Returns their ids.
local before = now_ms() - tonumber(ARGV[1])
local ids = redis.call('ZRANGE', P .. 'finished', '-inf', whole(before), 'BYSCORE', 'LIMIT', 0, ARGV[2])
for _, id in ipairs(ids) do
  local known = redis.call('HMGET', job_key(id), 'request_id', 'state')
  if known[1] and known[1] ~= '' then redis.call('DEL', P .. 'request:' .. known[1]) end
  if known[2] then redis.call('ZREM', P .. 'state:' .. known[2], id) end
  redis.call('DEL', job_key(id), P .. 'events:' .. id)
  redis.call('ZREM', P .. 'finished', id)
end
return ids
