package fleet_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/fleet"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/fleet/valkey"
	"github.com/toolgate/toolgate/internal/testkit/program"
	"github.com/toolgate/toolgate/internal/testkit/redis"
)

const life = time.Minute

// keeping is a replica without listeners that keeps its sessions on a server.
type keeping struct {
	*fleet.Router
	*fleet.Keeper
	leave func()
}

// keep starts a replica that is in the directory.
func keep(t *testing.T, client *valkey.Client, secret string) *keeping {
	t.Helper()
	r, err := fleet.New(fleet.Options{
		Secret: []byte(secret), Directory: fleet.Shared{Client: client}, Address: "127.0.0.1:1",
		TLS: func() *tls.Config { return &tls.Config{} }, Admits: func(*http.Request) bool { return true },
	})
	if err != nil {
		t.Fatal(err)
	}
	k := &keeping{r, r.NewKeeper(client, life), sync.OnceFunc(r.Leave)}
	r.Announce(func() {})
	program.Await(t, "the replica is in the directory", func() bool { return alive(t, client, r) })
	t.Cleanup(func() {
		k.leave()
		k.Keeper.Close()
		_ = r.Close(context.Background())
	})
	return k
}

func alive(t *testing.T, client *valkey.Client, r *fleet.Router) bool {
	t.Helper()
	self := strings.Split(r.SessionID(), ".")[1]
	_, address, err := fleet.Shared{Client: client}.Find(t.Context(), self, "no session")
	return err == nil && address != ""
}

func connect(t *testing.T, s *redis.Server) *valkey.Client {
	t.Helper()
	client, err := valkey.Open(s.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// keeps wants Keep to answer that owner has the session, nobody for nil.
func (k *keeping) keeps(t *testing.T, session, record string, take bool, owner *keeping) {
	t.Helper()
	var want [8]byte
	if owner != nil {
		want = owner.ID()
	}
	got, err := k.Keep(t.Context(), session, []byte(record), take)
	if err != nil || got != want {
		t.Errorf("the session is that of %x, want %x, %v", got, want, err)
	}
}

// loads waits until what is kept of a session, or of a stream, is want.
func (k *keeping) loads(t *testing.T, session, stream string, want ...string) {
	t.Helper()
	program.Await(t, fmt.Sprintf("%q is kept", want), func() bool {
		parts, err := k.Load(t.Context(), session, stream)
		var got []string
		for _, part := range parts {
			got = append(got, string(part))
		}
		return err == nil && slices.Equal(got, want)
	})
}

// A session is its owner's until that is gone; then one replica has it, and after that one is
// gone another. The former owner learns it, and a session that has ended is nobody's.
func TestKeep(t *testing.T) {
	client := connect(t, redis.Start(t, ""))
	one, two, three := keep(t, client, secret), keep(t, client, secret), keep(t, client, secret)
	id := one.SessionID()
	two.keeps(t, id, "r", true, nil)
	one.keeps(t, id, "r", false, one)
	two.keeps(t, id, "r", true, one)
	one.keeps(t, id, "r", true, nil) // its own session, which it no longer has
	one.leave()
	var won sync.Map
	var racing sync.WaitGroup
	for _, k := range []*keeping{two, three} {
		racing.Go(func() {
			owner, err := k.Keep(t.Context(), id, []byte("r"), true)
			if err != nil {
				t.Error(err)
			}
			won.Store(owner, true)
		})
	}
	racing.Wait()
	winner, loser := two, three
	if _, ok := won.Load(three.ID()); ok {
		winner, loser = three, two
	}
	if _, ok := won.Load(loser.ID()); ok {
		t.Error("two replicas have the session")
	}
	one.keeps(t, id, "stale", false, winner)
	loser.loads(t, id, "", "r")
	winner.leave()
	loser.keeps(t, id, "r2", true, loser)
	one.keeps(t, id, "stale", false, loser)
	one.loads(t, id, "", "r2")
	loser.KeepEvent(id, "", 0)
	one.loads(t, id, "")
	one.keeps(t, id, "r", true, nil)
	// A server that has lost its data gets the record again.
	loser.keeps(t, id, "r3", false, loser)
	one.loads(t, id, "", "r3")
}

// Events are kept in the order of their numbers until they are dropped.
func TestKeepEvents(t *testing.T) {
	server := redis.Start(t, "")
	client := connect(t, server)
	one, two := keep(t, client, secret), keep(t, client, secret)
	id := one.SessionID()
	var want []string
	for n := range uint64(12) {
		one.KeepEvent(id, "s", n, []byte("event "), fmt.Append(nil, n))
		want = append(want, fmt.Sprint("event ", n))
	}
	one.KeepEvent(id, "other", 1, []byte("x"))
	two.loads(t, id, "s", want...)
	two.loads(t, id, "other", "x")
	for n := range uint64(11) {
		one.KeepEvent(id, "s", n)
	}
	two.loads(t, id, "s", "event 11")
	two.loads(t, two.SessionID(), "s")
	if left := server.Run(`local least = 1e9 for _, key in ipairs(redis.call('KEYS', '*session:*')) do least = math.min(least, redis.call('PTTL', key)) end
		for _, key in ipairs(redis.call('KEYS', '*stream:*')) do least = math.min(least, redis.call('PTTL', key)) end return {least}`)[0]; left <= 0 || left > life.Milliseconds() {
		t.Errorf("what is kept expires in %d ms", left)
	}

	// What is queued while the server is away is written when it is back, by Close at the latest.
	server.Kill()
	one.KeepEvent(id, "s", 12, []byte("late"))
	if _, err := two.Load(t.Context(), id, "s"); err == nil {
		t.Error("a server that is away has events")
	}
	server.Restart()
	two.loads(t, id, "s", "event 11", "late")
	one.KeepEvent(id, "s", 13, []byte("last"))
	one.Keeper.Close()
	one.Keeper = one.NewKeeper(client, life)
	if parts, err := two.Load(t.Context(), id, "s"); err != nil || len(parts) != 3 {
		t.Errorf("after Close: %q, %v", parts, err)
	}
}

// Threat: who can read and write the server reads results, or makes a session. What is kept says nothing,
// and opens only where it was put, for replicas with the secret.
func TestSealed(t *testing.T) {
	server := redis.Start(t, "")
	client := connect(t, server)
	one := keep(t, client, secret)
	id, other := one.SessionID(), one.SessionID()
	fill := func() {
		t.Helper()
		one.keeps(t, id, "mine: confidential", false, one)
		one.keeps(t, other, "theirs: confidential", false, one)
		for n := range uint64(3) {
			one.KeepEvent(id, "s", n, fmt.Appendf(nil, "confidential %d", n))
			one.KeepEvent(id, "t", n, fmt.Appendf(nil, "of t %d", n))
		}
		one.loads(t, id, "s", "confidential 0", "confidential 1", "confidential 2")
		one.loads(t, id, "t", "of t 0", "of t 1", "of t 2")
	}
	fill()
	const all = `local keys = redis.call('KEYS', 'toolgate:{sessions}:s*') table.sort(keys) `
	if found := server.Run(all + fmt.Sprintf(`local found = 0
		for _, key in ipairs(keys) do for _, text in ipairs(redis.call('HGETALL', key)) do
			for _, secret in ipairs({'confidential', %q, %q}) do if string.find(key .. text, secret, 1, true) then found = found + 1 end end
		end end return {found, #keys}`, id, other)); found[0] != 0 || found[1] != 4 {
		t.Errorf("%d of the texts under %d keys say what they should not", found[0], found[1])
	}
	if parts, err := keep(t, client, "another secret of 32 bytes .....").Load(t.Context(), id, ""); err != nil || parts != nil {
		t.Errorf("another secret opens %q, %v", parts, err)
	}
	for name, script := range map[string]string{
		"a bit is changed": `for _, key in ipairs(keys) do for _, field in ipairs(redis.call('HKEYS', key)) do if field ~= 'owner' then
			local text = redis.call('HGET', key, field)
			redis.call('HSET', key, field, string.sub(text, 1, -2) .. string.char((string.byte(text, -1) + 1) % 256))
		end end end`,
		"the end is cut off": `for _, key in ipairs(keys) do for _, field in ipairs(redis.call('HKEYS', key)) do if field ~= 'owner' then
			redis.call('HSET', key, field, string.sub(redis.call('HGET', key, field), 1, -2))
		end end end`,
		"plain text": `for _, key in ipairs(keys) do for _, field in ipairs(redis.call('HKEYS', key)) do if field ~= 'owner' then redis.call('HSET', key, field, 'forged') end end end`,
		"records and streams are exchanged": `for i = 1, 3, 2 do
			redis.call('RENAME', keys[i], 'x') redis.call('RENAME', keys[i+1], keys[i]) redis.call('RENAME', 'x', keys[i+1]) end`,
		"events are exchanged": `for _, key in ipairs(keys) do if string.find(key, 'stream:') then
			local a, b = redis.call('HGET', key, '0'), redis.call('HGET', key, '1') redis.call('HSET', key, '0', b, '1', a)
		end end for _, key in ipairs(keys) do if string.find(key, 'session:') then redis.call('HSET', key, 'record', 'x') end end`,
		"an event is given another number": `for _, key in ipairs(keys) do if string.find(key, 'stream:') then
			redis.call('HSET', key, '7', redis.call('HGET', key, '2')) end
			if string.find(key, 'session:') then redis.call('HSET', key, 'admin', redis.call('HGET', key, 'record')) redis.call('HSET', key, 'record', '') end end`,
	} {
		server.Run(`redis.call('FLUSHALL') return {1}`)
		fill()
		server.Run(all + script + " return {1}")
		for what, stream := range map[string]string{"record": "", "stream s": "s", "stream t": "t"} {
			if parts, err := one.Load(t.Context(), id, stream); err != nil || parts != nil {
				t.Errorf("%s: the %s is %q, %v", name, what, parts, err)
			}
		}
	}
}

// Requests of a session go to the replica that took it over, also from one that knows only who opened
// it, and to nobody else when that replica is gone.
func TestTakenSessionIsFound(t *testing.T) {
	client := connect(t, redis.Start(t, ""))
	c := newCluster(t)
	c.shared = fleet.Shared{Client: client}
	one, two, three := c.join(echo("one")), c.join(echo("two")), c.join(echo("three"))
	id := one.SessionID()
	serves := func(at *member, want string) {
		t.Helper()
		program.Await(t, "the session is at "+want, func() bool {
			_, text := at.send(t, "POST", "/mcp", id, "body")
			return strings.HasPrefix(text, want+" ")
		})
	}
	keeper := two.NewKeeper(client, life)
	defer keeper.Close()
	former := one.NewKeeper(client, life)
	defer former.Close()
	if owner, err := former.Keep(t.Context(), id, []byte("r"), false); err != nil || owner != one.ID() {
		t.Fatal(owner, err)
	}
	serves(three, "one")
	one.Leave()
	serves(three, "three")
	if owner, err := keeper.Keep(t.Context(), id, []byte("r"), true); err != nil || owner != two.ID() {
		t.Fatal(owner, err)
	}
	serves(three, "two")
	serves(two, "two")
	if one.served.Load() == 0 {
		t.Error("the owner has served nothing")
	}
	two.kill() // its lease is not over, and its process has ended
	serves(three, "three")
}

// Where a session was found is kept for five seconds, and forgotten when the hop fails: by the server's own
// count. A replica that leaves loses no request of those that still have its address.
func TestFoundSessionsAreKept(t *testing.T) {
	server := redis.Start(t, "")
	c := newCluster(t)
	c.shared = fleet.Shared{Client: connect(t, server)}
	var passed atomic.Int64
	began := time.Now()
	c.now = func() time.Time { return began.Add(time.Duration(passed.Load())) }
	one := c.join(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodDelete {
			http.NotFound(w, r)
			return
		}
		echo("one")(w, r)
	})
	two, three := c.join(echo("two")), c.join(echo("three"))
	id, leaving, body := one.SessionID(), three.SessionID(), "small"
	asks := func(what string, want int64, session, by string, n int) {
		t.Helper()
		const found = `return {tonumber(string.match(redis.call('INFO', 'commandstats'), 'cmdstat_hget:calls=(%d+)') or 0)}`
		before := server.Run(found)[0]
		for range n {
			if _, text := two.send(t, "POST", "/mcp", session, body); !strings.HasPrefix(text, by+" ") || !strings.HasSuffix(text, ": "+body) {
				t.Errorf("%s: served as %.100s, want %s", what, text, by)
			}
		}
		if got := server.Run(found)[0] - before; got != want {
			t.Errorf("%s: %d requests asked %d times, want %d", what, n, got, want)
		}
	}
	asks("the first requests", 1, id, "one", 20)
	asks("another session", 1, one.SessionID(), "one", 20)
	passed.Add(int64(5 * time.Second))
	asks("after five seconds", 1, id, "one", 20)
	body = strings.Repeat("a", 100_000)
	asks("a large body", 2, id, "one", 2)
	body = "small"
	asks("a replica that will leave", 1, leaving, "three", 2)
	three.Leave()
	hops := two.hops.Load()
	asks("after it has left", 2, leaving, "two", 2)
	if n := two.hops.Load() - hops; n != 1 {
		t.Errorf("%d requests were sent to a replica that has left, want 1", n)
	}
	two.send(t, "DELETE", "/mcp", id, "")
	asks("after its owner did not know it", 1, id, "one", 2)
	asks("before its owner ends", 0, id, "one", 1)
	one.agents.Close()
	one.Leave()
	one.kill()
	program.Await(t, "the owner is gone", func() bool {
		_, text := two.send(t, "POST", "/mcp", id, body)
		return strings.HasPrefix(text, "two ")
	})
	asks("after its owner has ended", 1, id, "two", 1)
}
