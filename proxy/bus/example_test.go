package bus_test

import (
	"context"
	"fmt"

	"github.com/toolgate/toolgate/policy"
	"github.com/toolgate/toolgate/proxy/bus"
	"github.com/toolgate/toolgate/signal"
)

// A principal hears the signals of its own calls, in the order in which they are
// published.
func ExampleBus() {
	b := bus.New(bus.Options{})
	defer b.Close()
	ann := policy.Principal{Subject: "ann"}
	listener, err := b.Subscribe(ann)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer listener.Close()

	s, err := signal.CreateText("hello", signal.ModuleRef{Tier: 4, Module: "gate", Function: "normalise"}, "trc_1", nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	b.Publish(ann, s)
	b.Publish(policy.Principal{Subject: "bob"}, s)

	n, err := listener.Next(context.Background())
	fmt.Println(n.Method, err)
	fmt.Println(b.Listening(policy.Principal{Subject: "bob"}))
	// Output:
	// notifications/signal <nil>
	// false
}
