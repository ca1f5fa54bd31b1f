"""Every key in Redis: its type, its lifetime, and why it is there. The scripts spell the same names in `prelude.lua`.

Knows nothing of what is stored. Invariant: no key outside this table exists, and none outside `darkroom:` is touched.
One server, not a cluster: scripts derive names from ids.

| key | type | lives | why |
|---|---|---|---|
| darkroom:store | string | for ever | name of this database: half of every fencing token |
| darkroom:token | counter | for ever | the other half: rises with each claim, so that a late writer is told apart |
| darkroom:virtual | counter | for ever | how far the line has come, in virtual time: fairness |
| darkroom:flows | hash rank:tenant to time | while the tenant waits | each flow's next place in line |
| darkroom:waiting | hash tenant to count | while the tenant waits | bounds on each tenant's waiting jobs |
| darkroom:outputs | string | for ever | name of the output folder that these jobs' files are in |
| darkroom:since | string, server ms | for ever | when this database was new: older outputs are not its own to judge |
| darkroom:output_bytes | counter | for ever | size of all outputs that jobs name: retention by size |
| darkroom:job:ID | hash | until its retention ends | the job: fields below |
| darkroom:events:ID | stream, capped | 1 h past the job's end | what WatchJob replays; entry N-0 has sequence N |
| darkroom:request:REQUEST_ID | hash job, digest | as long as its job | idempotency: a repeated submit finds its job |
| darkroom:queue | zset by place | while jobs wait | the line: fair over tenants, by priority; see `prelude.lua` |
| darkroom:queue:KIND | zset by place | while jobs wait | the same jobs, by model and preferences: affinity |
| darkroom:deadlines | zset by server ms | until their jobs end | when jobs that have a deadline must have ended |
| darkroom:leases | zset by server ms | while jobs run | when each running job counts as abandoned by its gateway |
| darkroom:worker:ID | hash job to token | while jobs run on it | one claim a worker, of one job or one batch |
| darkroom:operator:ID | string token | at most one lease | an operator's load holds the worker like a job |
| darkroom:state:N | zset by name | until retention ends | ids of the jobs in state N: lists |
| darkroom:dead | zset by name | until re-driven or forgotten | ids of the jobs that are tried no more: dead letters |
| darkroom:finished | zset by server ms | until retention ends | when retention ends |
| darkroom:strays | zset by server ms | some minutes | jobs taken over, when: their late gateways may leave files |
| darkroom:bell | channel | - | wakes gateways: `q` queue, `e:ID` event, `c:ID` stop, `l` leases, `d` deadline |

Fields of a job: request, terms, tenant, created_ms, started_ms, finished_ms, deadline_ms, state, attempts, worker,
seq, state_seq, progress, output, bytes (of the output's file), error, kind, request_id, redriven_as, redriven_from,
failed_attempts (messages, one after the other). Never shown: token (of the newest claim), run and run_seq (name of
the run on the worker and its last event kept here), unheard (adoptions before such an event), shape (jobs of one shape
may run together), alone (once its engine died, it runs with no other), place (in line; a job that returns to it keeps
its place), passed_ms (when another job first went before it at the head of the line), cancel (asked for), lost and
deaths (how often a worker was lost, an engine died), terminal_writes (never above 1).
Of an ended job only what is shown, token, lost, deaths and terminal_writes stay; of a failed one place, kind and shape
as well.
Protobuf values are opaque bytes to Redis; times are the server's clock in milliseconds.
"""

PREFIX = "darkroom:"
STORE = f"{PREFIX}store"
OUTPUTS = f"{PREFIX}outputs"
SINCE = f"{PREFIX}since"
QUEUE = f"{PREFIX}queue"
LEASES = f"{PREFIX}leases"
DEAD = f"{PREFIX}dead"
STRAYS = f"{PREFIX}strays"
BELL = f"{PREFIX}bell"


def job(job_id: str) -> str:
    """Returns the key of a job's hash."""
    return f"{PREFIX}job:{job_id}"


def events(job_id: str) -> str:
    """Returns the key of a job's event stream."""
    return f"{PREFIX}events:{job_id}"


def in_state(state: int) -> str:
    """Returns the key of the ids of the jobs in a state."""
    return f"{PREFIX}state:{state}"
