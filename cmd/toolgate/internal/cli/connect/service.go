package connect

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/command"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/loginitem"
	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/report"
)

// A service is what starts at login.
type service struct {
	e       *command.Env
	name    string // of the item
	envFile string
}

// ServiceCommand returns the command of the entry that starts toolgate at login.
func ServiceCommand(e *command.Env) *cobra.Command {
	s := &service{e: e}
	show := false
	install := e.Printing("install", "start toolgate serve now, and whenever you log in", func(ctx context.Context, _ []string) (*report.Report, error) {
		if !show {
			return statusReport(s.install(ctx))
		}
		m, item, err := s.item()
		if err != nil {
			return nil, err
		}
		text, err := m.Text(item)
		if err != nil {
			return nil, command.Usage(err)
		}
		return nil, e.Write(text)
	})
	install.Flags().StringVar(&s.envFile, "env-file", "", "`FILE` with NAME=VALUE lines, the variables that the configuration names")
	install.Flags().BoolVar(&show, "print", false, "print the file of the service, and install nothing")
	uninstall := e.Printing("uninstall", "end toolgate serve, and start it no longer at login", func(ctx context.Context, _ []string) (*report.Report, error) {
		m, err := s.manager()
		if err == nil {
			err = m.Uninstall(ctx, s.name)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil, command.Usage(fmt.Errorf("%w\nhint: toolgate service status names the file", err))
		case err != nil:
			return nil, err
		}
		return statusReport(m.Status(ctx, s.name))
	})
	status := e.Printing("status", "say whether toolgate starts at login, and runs", func(ctx context.Context, _ []string) (*report.Report, error) {
		m, err := s.manager()
		if err != nil {
			return nil, err
		}
		return statusReport(m.Status(ctx, s.name))
	})
	c := command.Group("service", "start toolgate when you log in", install, uninstall, status)
	c.PersistentFlags().StringVar(&s.name, "name", "toolgate", "`NAME` of the service, for several configurations")
	return c
}

// serviceName matches names that are, with at most 64 bytes, safe in files and command lines of every system.
var serviceName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]*$`)

// manager returns what starts programs at login here.
func (s *service) manager() (*loginitem.Manager, error) {
	if len(s.name) > 64 || !serviceName.MatchString(s.name) {
		return nil, command.Usage(fmt.Errorf("--name %q is no NAME\nhint: letters, digits, - and _", s.name))
	}
	home, _ := s.e.Lookup("HOME")
	if runtime.GOOS == "windows" {
		home, _ = s.e.Lookup("USERPROFILE")
	}
	configHome, _ := s.e.Lookup("XDG_CONFIG_HOME")
	return loginitem.New(runtime.GOOS, home, configHome)
}

// statusReport is the report of all three commands.
func statusReport(s loginitem.Status, err error) (*report.Report, error) {
	return report.Of(s, serviceText), err
}

// install has toolgate serve the configuration at login.
func (s *service) install(ctx context.Context) (status loginitem.Status, err error) {
	m, item, err := s.item()
	if err != nil {
		return status, err
	}
	if err := m.Install(ctx, item); err != nil {
		return status, err
	}
	return m.Status(ctx, s.name)
}

// item returns the command that serves the configuration, which has to be valid.
func (s *service) item() (m *loginitem.Manager, i loginitem.Item, err error) {
	e := s.e
	if m, err = s.manager(); err != nil {
		return nil, i, err
	}
	if _, err := e.Load(); err != nil {
		return nil, i, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, i, fmt.Errorf("finding toolgate: %w", err)
	}
	i = loginitem.Item{Name: s.name, Command: []string{program, "serve"}, Path: os.Getenv("PATH")}
	for _, flag := range []struct{ name, path string }{{"--config", e.Config}, {"--overlay", e.Overlay}, {"--state", e.State}, {"--keys", e.Keys}} {
		if flag.path == "" {
			continue
		}
		path, err := filepath.Abs(flag.path)
		if err != nil {
			return nil, i, err
		}
		i.Command = append(i.Command, flag.name, path)
		if flag.name == "--config" {
			i.Dir = filepath.Dir(path)
		}
	}
	if s.envFile == "" {
		return m, i, nil
	}
	if i.EnvFile, err = filepath.Abs(s.envFile); err == nil {
		_, err = os.Stat(i.EnvFile)
	}
	if err != nil {
		return nil, i, command.Usage(fmt.Errorf("reading --env-file: %w", err))
	}
	return m, i, nil
}

// OfferService asks whether toolgate is to start at login, unless the answer is given.
func OfferService(ctx context.Context, e *command.Env, wanted, asks bool) error {
	if !wanted && (!asks || !e.Confirm("start toolgate now, and whenever you log in?")) {
		return nil
	}
	status, err := (&service{e: e, name: "toolgate"}).install(ctx)
	if err != nil {
		return err
	}
	return e.Print(report.Of(status, serviceText))
}

// hintService says on stderr how to end what starts at login, if there is anything.
func hintService(e *command.Env) {
	s := &service{e: e, name: "toolgate"}
	m, err := s.manager()
	if err != nil {
		return
	}
	if file, err := m.File(s.name); err == nil {
		if _, err := os.Stat(file); err == nil {
			fmt.Fprintln(e.Stderr, "hint: toolgate still starts at login; toolgate service uninstall ends that")
		}
	}
}
