package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/toolgate/toolgate/policy/identity"
	"github.com/toolgate/toolgate/proxy"
	"github.com/toolgate/toolgate/proxy/mcp"
	"github.com/toolgate/toolgate/proxy/rest"
	"github.com/toolgate/toolgate/proxy/wire"
	"github.com/toolgate/toolgate/registry"
	"github.com/toolgate/toolgate/registry/config"
)

// drain is how long calls under way may go on after SIGTERM.
const drain = 20 * time.Second

func serveCommand(e *env) *cobra.Command {
	var listen, adminAddr string
	c := &cobra.Command{
		Use: "serve", Short: "serve agents and people", Args: cobra.NoArgs,
		Long: `serve reads mcp.json, starts its servers side by side and serves agents on
toolgate.listen (/mcp, /mcp/{server}, /sse, /sse/{server}) and people on
toolgate.admin (/console/, /v1/approvals, /livez, /readyz, /metrics). SIGTERM drains, SIGHUP reloads, and so
does a change of any file that was read; a broken file changes nothing.`,
		Example: `  toolgate serve
  toolgate serve --config mcp.json --overlay toolgate.json --listen 127.0.0.1:9000`,
		RunE: func(c *cobra.Command, _ []string) error { return e.serve(c.Context(), listen, adminAddr) },
	}
	c.Flags().StringVar(&listen, "listen", "", "address for agents (default: as configured)")
	c.Flags().StringVar(&adminAddr, "admin", "", "address for people (default: as configured)")
	return c
}

func (e *env) serve(ctx context.Context, listen, adminAddr string) error {
	outlive()
	cfg, err := e.loadAs(listen, adminAddr, e.state)
	if err != nil {
		return err
	}
	agents, err := listenOn(cfg.Listen)
	if err != nil {
		return err
	}
	defer agents.Close()
	people, err := listenOn(cfg.Admin)
	if err != nil {
		return err
	}
	defer people.Close()
	log := e.logger()
	asked := cfg
	cfg = bound(cfg, agents, people)
	in, err := open(ctx, cfg, e.role, log)
	if err != nil {
		return err
	}
	in.begun = asked
	door, err := in.door(cfg)
	if err != nil {
		return errors.Join(err, in.close())
	}
	jobs, err := in.rest(cfg)
	if err != nil {
		return errors.Join(err, in.close())
	}
	in.changedTools = door.ToolsChanged
	in.tellAgents.Store(new(door.ToolsChangedFor))
	in.upstream.OnChange(in.changedTools)
	in.upstream.OnListChanged(door.ListChanged)
	e.banner(in, agents.Addr().String(), people.Addr().String(), listen != "")
	in.warn()
	again := source{
		next: func() (*config.Config, error) { return e.loadAs(listen, adminAddr, e.state) },
		now: func() (*config.Config, error) {
			return e.loadAs(agents.Addr().String(), people.Addr().String(), cfg.State)
		},
	}
	err = in.serve(ctx, again, doors{door, jobs}, agents, people)
	return errors.Join(err, in.close())
}

// bound is cfg with the ports that the listeners got where it leaves them open,
// so that the addresses which others are told are right.
func bound(cfg *config.Config, agents, people net.Listener) *config.Config {
	c := *cfg
	for address, l := range map[*string]net.Listener{&c.Listen: agents, &c.Admin: people} {
		if host, port, err := net.SplitHostPort(*address); err == nil && strings.Trim(port, "0") == "" {
			*address = net.JoinHostPort(host, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
		}
	}
	return &c
}

// doors are the ways in on the agents' listener.
type doors struct {
	mcp  *mcp.Door
	rest *rest.Handler
}

// ServeHTTP gives a request to the door that its path names.
func (d doors) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/v1/") {
		d.rest.ServeHTTP(w, r)
		return
	}
	d.mcp.ServeHTTP(w, r)
}

// serve runs the two listeners and the watch until ctx ends, then drains.
func (in *instance) serve(ctx context.Context, again source, ways doors, agents, people net.Listener) error {
	desk, err := in.people(in.cfg)
	if err != nil {
		return err
	}
	forAgents, forPeople := server(ways), server(desk)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return serveHTTP(forAgents, agents) })
	group.Go(func() error { return serveHTTP(forPeople, people) })
	group.Go(func() error { return in.watch(ctx, again) })
	group.Go(func() error { return in.poll(ctx) })
	beside := in.openShadow()
	group.Go(func() error { return beside.run(ctx) })
	group.Go(func() error {
		<-ctx.Done()
		desk.Close()
		in.drain(context.WithoutCancel(ctx), ways.mcp.Close, ways.rest.Drain, in.steward.Close)
		return errors.Join(hangUp(forAgents), hangUp(forPeople))
	})
	return group.Wait()
}

// drain lets the calls that are under way finish, and cancels those that take
// longer than they may.
func (in *instance) drain(ctx context.Context, doors ...func(context.Context) error) {
	in.log.Info("draining", "seconds", drain.Seconds())
	ctx, stop := context.WithTimeout(ctx, drain)
	defer stop()
	var group errgroup.Group
	for _, end := range doors {
		group.Go(func() error { return end(ctx) })
	}
	if err := group.Wait(); err != nil {
		in.log.Warn("calls under way were cancelled: they took longer than draining may", "seconds", drain.Seconds())
	}
}

// hangUp ends a server whose requests are answered.
func hangUp(s *http.Server) error {
	ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
	defer stop()
	if err := s.Shutdown(ctx); err != nil {
		return errors.Join(fmt.Errorf("ending connections: %w", err), s.Close())
	}
	return nil
}

// door is the way in for MCP clients.
func (in *instance) door(cfg *config.Config) (*mcp.Door, error) {
	opts := in.doorOptions(cfg)
	opts.HasServer = func(name string) bool { return in.upstream.Catalogue().HasServer(name) }
	opts.Hosts = hostsOf(cfg.Listen)
	return mcp.New(opts)
}

// doorOptions is what every way in for MCP clients has.
func (in *instance) doorOptions(cfg *config.Config) mcp.Options {
	return mcp.Options{
		Gate: in.gate, Refuser: in.gate, Relayer: in.gate, Notifier: in.gate, Offers: in.upstream.Offered,
		Version: version, Errors: wire.Dialect(cfg.Errors),
		Profile: wire.Profile(cfg.Envelope), Deterministic: cfg.Deterministic, Observe: in.observe, Tasks: true, StateKey: in.stateKey,
		Ended: in.ended, Log: in.log.Named("mcp"),
	}
}

// ended forgets a session that is over, and closes its connections.
func (in *instance) ended(session string) {
	in.gate.EndSession(session)
	in.upstream.EndSession(session)
}

// rest is the way in for HTTP clients that do not speak MCP.
func (in *instance) rest(cfg *config.Config) (*rest.Handler, error) {
	return rest.New(rest.Options{
		Gate: in.gate, Refuser: in.gate, ToolIO: in.toolIO(), Artifacts: in.files, Bus: in.bus,
		Envelope: wire.Envelope{Deterministic: cfg.Deterministic}, Observe: in.observe,
		Hosts: hostsOf(cfg.Listen), Version: version, Log: in.log.Named("rest"),
	})
}

// toolIO gives the schemas of tools by their exposed names: those of servers, and
// of the one tool that is the gate's own.
func (in *instance) toolIO() func(exposed string) (*registry.ToolIO, error) {
	own := registry.NewSchemaRegistry()
	return func(exposed string) (*registry.ToolIO, error) {
		io, err := in.upstream.LoadToolIO(exposed)
		if errors.Is(err, registry.ErrUnknownTool) && exposed == proxy.StatusName {
			return own.LoadToolIO(exposed, proxy.StatusTool())
		}
		return io, err
	}
}

// stdioCredential is who speaks on stdin: the principal of --token, else local.
func (e *env) stdioCredential() identity.Credential {
	return identity.Credential{Bearer: e.token, Local: e.token == ""}
}

func hostsOf(address string) []string {
	host, _, err := net.SplitHostPort(address)
	if err != nil || host == "" {
		return nil
	}
	return []string{host}
}

func listenOn(address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return nil, &exit{code: exitUnexpected, err: fmt.Errorf("listening on %s: %w\nhint: is another toolgate serving there? choose another address with --listen or --admin", address, err)}
	}
	return l, nil
}

// server bounds what a client may take to say what it wants. Streams are long,
// so there is no bound on an answer.
func server(h http.Handler) *http.Server {
	return &http.Server{Handler: h, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10}
}

func serveHTTP(s *http.Server, l net.Listener) error {
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serving %s: %w", l.Addr(), err)
	}
	return nil
}
