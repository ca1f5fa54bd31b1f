-- Ends a queued job, asks a running one to stop, leaves an ended one alone. ARGV: id, error. Returns the record or {}.
local id, problem = unpack(ARGV)
local state = redis.call('HGET', job_key(id), 'state')
if state == QUEUED then
  finish(id, CANCELLED, '', problem)
elseif state == RUNNING then
  redis.call('HSET', job_key(id), 'cancel', '1')
  ring('c:' .. id)
end
return record(id)
