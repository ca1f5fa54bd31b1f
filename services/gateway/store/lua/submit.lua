-- Record, place in line and idempotency key in one step.
-- ARGV: random suffix of the id, request, kind, request id or '', digest of the request, terms, deadline in ms from now
-- or 0, rank, tenant, most waiting jobs, most waiting jobs of a tenant, shape
-- Returns {'created' | 'known', id, record}, {'reused', id}, {'full', waiting, tenant or ''}.
local suffix, request, kind, request_id, digest, terms, deadline_ms, rank, tenant = unpack(ARGV, 1, 9)
local before = answer_before(request_id, digest)
if before then return before end
local refused = refusal(tenant, ARGV[10], ARGV[11])
if refused then return refused end
local id = accept({suffix = suffix, request = request, kind = kind, request_id = request_id, digest = digest,
  terms = terms, deadline_ms = tonumber(deadline_ms), rank = tonumber(rank), tenant = tenant, shape = ARGV[12]})
return {'created', id, record(id)}
