package recorder

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Main runs a recorder, or the guardian of one, if this process was started as
// such; it does not return then. isGuardian and guard are sandbox.IsGuardian and
// guardian.Main, passed as arguments so that this package does not import them.
func Main(isGuardian func([]string) bool, guard func([]string) int) {
	if isGuardian(os.Args[1:]) {
		os.Exit(guard(os.Args[2:]))
	}
	config := os.Getenv(configVar)
	if config == "" {
		return
	}
	var cfg Config
	if err := json.Unmarshal([]byte(config), &cfg); err != nil {
		fmt.Fprintln(os.Stderr, "recorder:", err)
		os.Exit(2)
	}
	file, err := os.OpenFile(os.Getenv(fileVar), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		fmt.Fprintln(os.Stderr, "recorder:", err)
		os.Exit(2)
	}
	p := &process{cfg: cfg, file: file, engine: newEngine(cfg, func() { os.Exit(3) })}
	p.engine.apart = func(_, message string) { p.send(message) }
	if cfg.Stateless != nil {
		p.stateless = newStateless(*cfg.Stateless, p.note)
	}
	p.run()
	os.Exit(0)
}

// process is a recorder on stdin and stdout.
type process struct {
	cfg       Config
	engine    *engine
	stateless *statelessServer // nil for a server with sessions

	mu   sync.Mutex // held while writing to file or stdout
	file *os.File
}

// run serves until stdin ends.
func (p *process) run() {
	p.note("start", InsidePID(os.Getpid()))
	fmt.Fprintln(os.Stderr, "recorder started")
	if p.cfg.CrashAtStart || p.cfg.Gate != "" && !pass(p.cfg.Gate) {
		os.Exit(4)
	}
	if p.cfg.IgnoreTERM {
		signal.Ignore(syscall.SIGTERM)
	}
	if p.cfg.Grandchild {
		p.leave()
	}
	in := bufio.NewReader(os.Stdin)
	for {
		line, err := in.ReadString('\n')
		if err != nil {
			break
		}
		line = strings.TrimSuffix(line, "\n")
		p.note("in", line)
		switch probe := strings.Contains(line, `"method":"server/discover"`); {
		case probe && p.cfg.CrashOnDiscover:
			os.Exit(5)
		case probe && p.cfg.IgnoreDiscover:
			continue
		case p.stateless != nil:
			go p.stateless.serve(context.Background(), []byte(line), p.send)
			continue
		}
		go p.engine.serve("", []byte(line), p.send)
		if p.cfg.StopReading && strings.Contains(line, `"method":"tools/call"`) {
			select {}
		}
	}
	if p.cfg.IgnoreTERM {
		select {}
	}
}

// note appends an event with a single write, so that several processes can share the
// file.
func (p *process) note(kind, payload string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprint(p.file, event{time.Now(), os.Getpid(), kind, payload})
}

// send writes one message.
func (p *process) send(line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	_, _ = os.Stdout.WriteString(line + "\n") // the proxy may have exited
}

// leave starts a process that does not exit.
func (p *process) leave() {
	cmd := exec.Command("sleep", "600")
	detach(cmd)
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "recorder:", err)
		os.Exit(2)
	}
	p.note("grandchild", InsidePID(cmd.Process.Pid))
}
