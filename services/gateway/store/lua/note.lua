-- Tells why a queued job waits, once a reason. ARGV: id, progress.
local id, progress = unpack(ARGV)
local held = redis.call('HMGET', job_key(id), 'state', 'progress')
if held[1] == QUEUED and held[2] ~= progress then
  redis.call('HSET', job_key(id), 'progress', progress)
  tell(id, 'progress', progress)
  ring('e:' .. id)
end
return {}
