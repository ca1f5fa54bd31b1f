-- An operator's claim of a worker that no job has. ARGV: worker id, lease in ms, candidate name of the store.
-- Returns {token, store}, or {job id or ''} when somebody holds it.
local worker, lease_ms, candidate = unpack(ARGV)
local job = redis.call('HKEYS', P .. 'worker:' .. worker)[1]
if job then return {job} end
if redis.call('EXISTS', P .. 'operator:' .. worker) > 0 then return {''} end
redis.call('SET', P .. 'store', candidate, 'NX')
local token = next_token()
redis.call('SET', P .. 'operator:' .. worker, token, 'PX', lease_ms)
return {token, redis.call('GET', P .. 'store')}
