-- Record, queue entry and idempotency key in one step.
-- ARGV: random suffix of the id, request, kind, request id or '', digest of the request, most waiting jobs, terms,
-- deadline in ms from now or 0
-- Returns {'created' | 'known', id, record}, {'reused', id}, {'full', waiting}.
local suffix, request, kind, request_id, digest, limit, terms, deadline_ms = unpack(ARGV)
local before = answer_before(request_id, digest)
if before then return before end
local waiting = redis.call('ZCARD', P .. 'queue')
if waiting >= tonumber(limit) then return {'full', waiting} end
local id = accept({suffix = suffix, request = request, kind = kind, request_id = request_id, digest = digest,
  terms = terms, deadline_ms = tonumber(deadline_ms)})
return {'created', id, record(id)}
