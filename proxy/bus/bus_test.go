package bus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/proxy/bus"
	"github.com/toolgate/toolgate/signal"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	ann    = policy.Principal{Subject: "ann", Roles: []string{"researcher"}, Tenant: "acme"}
	bob    = policy.Principal{Subject: "bob", Tenant: "acme"}
	other  = policy.Principal{Subject: "ann", Tenant: "globex"}
	origin = signal.ModuleRef{Tier: 4, Module: "tools", Function: "call"}
)

func text(t testing.TB, words string) signal.Signal {
	t.Helper()
	s, err := signal.CreateText(words, origin, "trace", nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func listen(t testing.TB, b *bus.Bus, who policy.Principal) *bus.Subscription {
	t.Helper()
	s, err := b.Subscribe(who)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// hears takes what is there, as far as the words of want go.
func hears(t testing.TB, s *bus.Subscription, want ...string) {
	t.Helper()
	for _, words := range want {
		n, err := s.Next(t.Context())
		if err != nil || !bytes.Contains(n.Params, []byte(fmt.Sprintf("%q", words))) {
			t.Fatalf("heard %s, %v; want %q", n.Params, err, words)
		}
	}
}

func ends(t testing.TB, s *bus.Subscription, want error) {
	t.Helper()
	for range 2 { // and it stays so
		if n, err := s.Next(t.Context()); !errors.Is(err, want) || n.Method != "" {
			t.Errorf("heard %s %s, %v; want %v", n.Method, n.Params, err, want)
		}
	}
}

func TestANotificationIsTheSignals(t *testing.T) {
	b := bus.New(bus.Options{})
	s := listen(t, b, ann)
	sent := text(t, "words")
	b.Publish(ann, sent)
	got, err := s.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(signal.SignalToNotification(sent), got); diff != "" {
		t.Error(diff)
	}
}

func TestWhoHearsWhat(t *testing.T) {
	b := bus.New(bus.Options{})
	anns, again, bobs, others := listen(t, b, ann), listen(t, b, policy.Principal{Subject: "ann", Tenant: "acme"}), listen(t, b, bob), listen(t, b, other)
	for _, m := range []struct {
		of    policy.Principal
		words string
	}{
		{ann, "ann's 1"}, {bob, "bob's"}, {policy.Principal{Subject: "ann"}, "nobody's"}, {other, "other's"}, {ann, "ann's 2"}, {policy.Principal{}, "nobody's"},
	} {
		b.Publish(m.of, text(t, m.words))
	}
	b.Close()
	for s, want := range map[*bus.Subscription][]string{anns: {"ann's 1", "ann's 2"}, again: {"ann's 1", "ann's 2"}, bobs: {"bob's"}, others: {"other's"}} {
		hears(t, s, want...)
		ends(t, s, bus.ErrClosed)
	}
}

func TestListening(t *testing.T) {
	b := bus.New(bus.Options{Depth: 1})
	is := func(when string, who policy.Principal, want bool) {
		t.Helper()
		if got := b.Listening(who); got != want {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	is("nobody subscribed", ann, false)
	first, second := listen(t, b, ann), listen(t, b, ann)
	is("two listen", ann, true)
	is("another's", bob, false)
	first.Close()
	is("one listens", ann, true)
	b.Publish(ann, text(t, "1"))
	b.Publish(ann, text(t, "2"))
	is("the last was dropped", ann, false)
	second.Close()
	listen(t, b, ann)
	is("one listens again", ann, true)
	b.Close()
	is("closed", ann, false)
}

func TestASlowListenerIsDropped(t *testing.T) {
	b := bus.New(bus.Options{Depth: 3})
	slow, quick := listen(t, b, ann), listen(t, b, ann)
	for _, words := range []string{"1", "2", "3", "4", "5"} {
		b.Publish(ann, text(t, words))
		hears(t, quick, words)
	}
	hears(t, slow, "1", "2", "3")
	ends(t, slow, bus.ErrDropped)
	slow.Close()
	ends(t, slow, bus.ErrDropped)
	b.Publish(ann, text(t, "6"))
	hears(t, quick, "6")
}

func TestAQueueIsBoundedInBytes(t *testing.T) {
	b := bus.New(bus.Options{Bytes: 5000})
	s := listen(t, b, ann)
	huge := strings.Repeat("huge", 5000)
	b.Publish(ann, text(t, huge)) // alone it passes
	hears(t, s, huge)
	b.Publish(ann, text(t, "small"))
	b.Publish(ann, text(t, "small too"))
	hears(t, s, "small", "small too")
	b.Publish(ann, text(t, "last"))
	b.Publish(ann, text(t, huge))
	b.Publish(ann, text(t, "lost"))
	hears(t, s, "last")
	ends(t, s, bus.ErrDropped)
}

func TestNextWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := bus.New(bus.Options{})
		s := listen(t, b, ann)
		heard := make(chan error, 1)
		go func() { heard <- second(s.Next(t.Context())) }()
		synctest.Wait()
		select {
		case err := <-heard:
			t.Fatalf("Next returned %v before anything came", err)
		default:
		}
		b.Publish(ann, text(t, "words"))
		if err := <-heard; err != nil {
			t.Error(err)
		}
	})
}

func second[T any](_ T, err error) error { return err }

func TestWhatEndsAWait(t *testing.T) {
	for name, c := range map[string]struct {
		end  func(b *bus.Bus, s *bus.Subscription)
		want error
	}{
		"the subscription is closed": {func(_ *bus.Bus, s *bus.Subscription) { s.Close(); s.Close() }, bus.ErrClosed},
		"the bus is closed":          {func(b *bus.Bus, _ *bus.Subscription) { b.Close(); b.Close() }, bus.ErrClosed},
		"the caller goes away":       {func(*bus.Bus, *bus.Subscription) { time.Sleep(time.Second) }, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := bus.New(bus.Options{})
				s := listen(t, b, ann)
				ctx, stop := context.WithTimeout(t.Context(), time.Second)
				defer stop()
				heard := make(chan error, 1)
				go func() { heard <- second(s.Next(ctx)) }()
				synctest.Wait()
				c.end(b, s)
				if err := <-heard; !errors.Is(err, c.want) {
					t.Errorf("%v, want %v", err, c.want)
				}
			})
		})
	}
}

func TestACallerThatIsGoneGetsNothing(t *testing.T) {
	b := bus.New(bus.Options{})
	s := listen(t, b, ann)
	b.Publish(ann, text(t, "words"))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 50 {
		if _, err := s.Next(ctx); !errors.Is(err, context.Canceled) {
			t.Fatalf("error %v", err)
		}
	}
	hears(t, s, "words")
}

func TestSubscribeRefuses(t *testing.T) {
	b := bus.New(bus.Options{PerPrincipal: 2, Total: 3, Depth: 1})
	refused := func(when string, who policy.Principal, want error) {
		t.Helper()
		if s, err := b.Subscribe(who); !errors.Is(err, want) || s != nil {
			t.Errorf("%s: %v, %v; want %v", when, s, err, want)
		}
	}
	refused("nobody", policy.Principal{Tenant: "acme"}, bus.ErrNobody)
	first := listen(t, b, ann)
	listen(t, b, ann)
	refused("a third of ann's", ann, bus.ErrTooMany)
	third := listen(t, b, other)
	refused("a fourth of all", bob, bus.ErrTooMany)
	b.Publish(ann, text(t, "1"))
	b.Publish(ann, text(t, "2"))
	refused("one that was dropped counts", ann, bus.ErrTooMany)
	first.Close()
	first.Close()
	third.Close()
	listen(t, b, ann)
	listen(t, b, bob)
	refused("closing twice counts once", other, bus.ErrTooMany)
	b.Close()
	refused("the bus is closed", ann, bus.ErrClosed)
}

func TestDefaults(t *testing.T) {
	b := bus.New(bus.Options{})
	defer b.Close()
	who := func(n int) policy.Principal { return policy.Principal{Subject: fmt.Sprint("p", n)} }
	for n := range 1024 {
		listen(t, b, who(n/16))
	}
	if _, err := b.Subscribe(who(1024)); !errors.Is(err, bus.ErrTooMany) {
		t.Errorf("the 1025th: %v", err)
	}
	one := bus.New(bus.Options{})
	s := listen(t, one, ann)
	for range 15 {
		listen(t, one, ann)
	}
	if _, err := one.Subscribe(ann); !errors.Is(err, bus.ErrTooMany) {
		t.Errorf("the 17th of one: %v", err)
	}
	var words []string
	for n := range 257 {
		words = append(words, fmt.Sprint(n))
		one.Publish(ann, text(t, words[n]))
	}
	hears(t, s, words[:256]...)
	ends(t, s, bus.ErrDropped)
}

// Everything at once: each listener hears what was published in order and
// without a gap, until it was dropped or closed.
func TestManyAtOnce(t *testing.T) {
	b := bus.New(bus.Options{Depth: 8, PerPrincipal: 8})
	const signals = 400
	var all sync.WaitGroup
	hear := func(n int) {
		s, err := b.Subscribe(ann)
		if err != nil {
			if !errors.Is(err, bus.ErrTooMany) && !errors.Is(err, bus.ErrClosed) {
				t.Error(err)
			}
			return
		}
		defer s.Close()
		last := -1
		for range 50 + n {
			got, err := s.Next(t.Context())
			if err != nil {
				if !errors.Is(err, bus.ErrDropped) && !errors.Is(err, bus.ErrClosed) {
					t.Error(err)
				}
				return
			}
			at := number(t, got)
			if last >= 0 && at != last+1 {
				t.Errorf("%d after %d", at, last)
			}
			last = at
		}
	}
	for n := range 12 {
		all.Go(func() {
			for range 20 {
				hear(n)
			}
		})
	}
	all.Go(func() {
		for i := range signals {
			b.Publish(ann, text(t, fmt.Sprintf("n%05d", i)))
		}
		b.Close()
	})
	all.Go(func() {
		for range signals {
			b.Publish(bob, text(t, "of another"))
			b.Listening(ann)
		}
	})
	all.Wait()
	if b.Listening(ann) {
		t.Error("somebody listens to a closed bus")
	}
}

func number(t testing.TB, n signal.JSONRPCNotification) (at int) {
	t.Helper()
	i := bytes.Index(n.Params, []byte(`"n0`))
	if i < 0 {
		t.Errorf("heard %s", n.Params)
		return -1
	}
	if _, err := fmt.Sscanf(string(n.Params[i:i+7]), `"n%05d`, &at); err != nil {
		t.Error(err)
	}
	return at
}

// A listener that is dropped by one call while it is closed by another.
func TestDroppedWhileClosed(t *testing.T) {
	for range 200 {
		b := bus.New(bus.Options{Depth: 1})
		s := listen(t, b, ann)
		b.Publish(ann, text(t, "1"))
		one := text(t, "2")
		var both sync.WaitGroup
		both.Go(func() { b.Publish(ann, one) })
		both.Go(s.Close)
		both.Wait()
		if _, err := b.Subscribe(ann); err != nil {
			t.Fatal(err)
		}
		if !b.Listening(ann) {
			t.Fatal("a new listener is not heard of")
		}
	}
}

func TestPublishCostsNothingWithoutListeners(t *testing.T) {
	b := bus.New(bus.Options{})
	s := text(t, "words")
	if n := testing.AllocsPerRun(100, func() { b.Publish(ann, s) }); n != 0 {
		t.Errorf("%v allocations on an empty bus", n)
	}
	listen(t, b, bob)
	if n := testing.AllocsPerRun(100, func() { b.Publish(ann, s) }); n != 0 {
		t.Errorf("%v allocations when others listen", n)
	}
}

// The notification is made once, however many listen.
func TestOneNotificationForAll(t *testing.T) {
	s := text(t, "words")
	b := bus.New(bus.Options{})
	first, again := listen(t, b, ann), listen(t, b, ann)
	b.Publish(ann, s)
	x, err := first.Next(t.Context())
	y, err2 := again.Next(t.Context())
	if err := errors.Join(err, err2); err != nil || &x.Params[0] != &y.Params[0] {
		t.Errorf("two texts for two listeners, %v", err)
	}
}

func BenchmarkPublish(b *testing.B) {
	s := text(b, strings.Repeat("words ", 100))
	for _, c := range []struct {
		name      string
		listeners []policy.Principal
	}{{"nobody listens", nil}, {"others listen", []policy.Principal{bob}}, {"one listens", []policy.Principal{ann}}, {"three listen", []policy.Principal{ann, ann, ann}}} {
		b.Run(c.name, func(b *testing.B) {
			on := bus.New(bus.Options{})
			var own []*bus.Subscription
			for _, who := range c.listeners {
				if l := listen(b, on, who); who.Subject == ann.Subject {
					own = append(own, l)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				on.Publish(ann, s)
				for _, l := range own {
					if _, err := l.Next(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
