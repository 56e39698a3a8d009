package records

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/audit/notary"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
	"github.com/toolgate/toolgate/internal/guard"
)

// witnessTimeout bounds a request to the witness, and its answer.
const witnessTimeout = 10 * time.Second

func auditWitness(e *command.Env) *cobra.Command {
	var listen, dir, name string
	var trusted []string
	var insecure bool
	c := command.WithForms(command.New("witness", "sign the checkpoints of other machines, and keep them", func(ctx context.Context, _ []string) error {
		if dir == "" || len(trusted) == 0 {
			return command.Usage(errors.New("the witness needs --dir and --trusted\nhint: --dir /var/lib/witness --trusted checkpoints-1.pub"))
		}
		host, _, err := net.SplitHostPort(listen)
		if err != nil {
			return command.Usage(fmt.Errorf("reading --listen: %w", err))
		}
		if !guard.Loopback(host) && !insecure {
			return command.Usage(fmt.Errorf("%q can be reached from other machines over plain HTTP\nhint: listen on 127.0.0.1 behind a proxy that speaks TLS, or accept it with --insecure", listen))
		}
		var known notary.Evidence
		if err := addKeyFiles(&known, trusted); err != nil {
			return err
		}
		l, err := net.Listen("tcp", listen)
		if err != nil {
			return fmt.Errorf("listening: %w", err)
		}
		w, err := notary.OpenWitness(dir, name, known.Keys)
		if err != nil {
			return errors.Join(err, l.Close())
		}
		return errors.Join(serveWitness(ctx, e, w, l), w.Close())
	}), command.NoReport)
	c.Flags().StringVar(&listen, "listen", "127.0.0.1:8789", "`ADDRESS` to listen on, HOST:PORT")
	c.Flags().StringVar(&dir, "dir", "", "`DIR` of the key and of the notes that were signed")
	c.Flags().StringArrayVar(&trusted, "trusted", nil, "PEM `FILE` of a public key that signs checkpoints; may be repeated")
	c.Flags().StringVar(&name, "name", "witness", "`NAME` of the key, when the first start makes it")
	c.Flags().BoolVar(&insecure, "insecure", false, "accept plain HTTP on an address that other machines reach")
	return c
}

// serveWitness prints the key of w, and serves until ctx ends.
func serveWitness(ctx context.Context, e *command.Env, w *notary.Witness, l net.Listener) error {
	w.OnError = func(err error) { fmt.Fprintf(e.Stderr, "toolgate: error: %s\n", report.Printable(err.Error())) }
	s := &http.Server{Handler: w, ReadTimeout: witnessTimeout, WriteTimeout: 2 * witnessTimeout, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	err := e.Write(w.Key + "\n")
	if err == nil {
		select {
		case <-ctx.Done():
		case err = <-served:
			return fmt.Errorf("serving %s: %w", l.Addr(), err)
		}
	}
	stopping, stop := context.WithTimeout(context.WithoutCancel(ctx), witnessTimeout)
	defer stop()
	err = errors.Join(err, s.Shutdown(stopping))
	if failed := <-served; !errors.Is(failed, http.ErrServerClosed) {
		err = errors.Join(err, failed)
	}
	return err
}
