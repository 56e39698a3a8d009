package approval

// Woken returns a channel that is closed when waiters are woken.
func (t *Tickets) Woken() <-chan struct{} { return t.changes() }

// Queries are the queries that a held call runs on tickets.
var Queries = map[string]string{
	"supersede": selectTicket + stale, "answering": selectTicket + answering, "retention": ended, "over": selectTicket + due, "live": live,
	"binding": selectTicket + "WHERE binding = ? ORDER BY seq DESC LIMIT 1",
}
