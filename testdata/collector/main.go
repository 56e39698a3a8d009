// Command collector is an OTLP receiver of the OpenTelemetry Collector for tests. It
// listens for OTLP over HTTP on the address that its argument names and writes what it
// receives to stdout: a line of JSON for each request, {"traces": …} or {"metrics": …}.
// Its first line is {"ready": true}. It ends when stdin does.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"
	"sync"

	"go.opentelemetry.io/collector/component/componenttest"
	"go.opentelemetry.io/collector/confmap"
	"go.opentelemetry.io/collector/consumer"
	"go.opentelemetry.io/collector/pdata/pmetric"
	"go.opentelemetry.io/collector/pdata/ptrace"
	"go.opentelemetry.io/collector/receiver/otlpreceiver"
	"go.opentelemetry.io/collector/receiver/receivertest"
)

func main() {
	if err := run(context.Background(), os.Args[1]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, address string) error {
	factory := otlpreceiver.NewFactory()
	cfg := factory.CreateDefaultConfig()
	settings := confmap.NewFromStringMap(map[string]any{"protocols": map[string]any{"http": map[string]any{"endpoint": address}}})
	if err := settings.Unmarshal(cfg); err != nil {
		return err
	}
	var mu sync.Mutex
	write := func(kind string, text []byte, err error) error {
		mu.Lock()
		defer mu.Unlock()
		if err == nil {
			_, err = fmt.Printf("{%q:%s}\n", kind, text)
		}
		return err
	}
	traces, err := consumer.NewTraces(func(_ context.Context, td ptrace.Traces) error {
		text, err := (&ptrace.JSONMarshaler{}).MarshalTraces(td)
		return write("traces", text, err)
	})
	if err != nil {
		return err
	}
	metrics, err := consumer.NewMetrics(func(_ context.Context, md pmetric.Metrics) error {
		text, err := (&pmetric.JSONMarshaler{}).MarshalMetrics(md)
		return write("metrics", text, err)
	})
	if err != nil {
		return err
	}
	made := receivertest.NewNopSettings(factory.Type())
	forTraces, err := factory.CreateTraces(ctx, made, cfg, traces)
	if err != nil {
		return err
	}
	forMetrics, err := factory.CreateMetrics(ctx, made, cfg, metrics) // shares the listener
	if err != nil {
		return err
	}
	if err := forTraces.Start(ctx, componenttest.NewNopHost()); err != nil {
		return err
	}
	if err := forMetrics.Start(ctx, componenttest.NewNopHost()); err != nil {
		return err
	}
	if err := write("ready", []byte("true"), nil); err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, os.Stdin)
	return forTraces.Shutdown(ctx)
}
