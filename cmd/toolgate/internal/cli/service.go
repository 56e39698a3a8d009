package cli

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

	"github.com/toolgate/toolgate/cmd/toolgate/internal/cli/loginitem"
)

// serviceFlags say what starts at login.
type serviceFlags struct {
	name    string // of the item
	envFile string
	show    bool // print the file, and install nothing
}

func serviceCommand(e *env) *cobra.Command {
	f := &serviceFlags{}
	c := group("service", "start toolgate when you log in", serviceInstall(e, f), serviceUninstall(e, f), serviceStatus(e, f))
	c.PersistentFlags().StringVar(&f.name, "name", "toolgate", "`NAME` of the service, for several configurations")
	return c
}

func serviceInstall(e *env, f *serviceFlags) *cobra.Command {
	c := command("install", "start toolgate serve now, and whenever you log in", func(ctx context.Context, _ []string) error { return e.installService(ctx, f) })
	c.Flags().StringVar(&f.envFile, "env-file", "", "`FILE` with NAME=VALUE lines, the variables that the configuration names")
	c.Flags().BoolVar(&f.show, "print", false, "print the file of the service, and install nothing")
	return c
}

func serviceUninstall(e *env, f *serviceFlags) *cobra.Command {
	return command("uninstall", "end toolgate serve, and start it no longer at login", func(ctx context.Context, _ []string) error {
		m, err := e.loginItems(f)
		if err == nil {
			err = m.Uninstall(ctx, f.name)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return usage(fmt.Errorf("%w\nhint: toolgate service status names the file", err))
		}
		if err != nil {
			return err
		}
		return e.printService(ctx, m, f)
	})
}

func serviceStatus(e *env, f *serviceFlags) *cobra.Command {
	return command("status", "say whether toolgate starts at login, and runs", func(ctx context.Context, _ []string) error {
		m, err := e.loginItems(f)
		if err != nil {
			return err
		}
		return e.printService(ctx, m, f)
	})
}

// serviceName matches names that are safe in files and command lines of every system.
var serviceName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)

// loginItems returns what starts programs at login here.
func (e *env) loginItems(f *serviceFlags) (*loginitem.Manager, error) {
	if !serviceName.MatchString(f.name) {
		return nil, usage(fmt.Errorf("--name %q is no NAME\nhint: letters, digits, - and _", f.name))
	}
	home, _ := e.lookup("HOME")
	if runtime.GOOS == "windows" {
		home, _ = e.lookup("USERPROFILE")
	}
	configHome, _ := e.lookup("XDG_CONFIG_HOME")
	return loginitem.New(runtime.GOOS, home, configHome)
}

// installService has toolgate serve the configuration at login, or prints how.
func (e *env) installService(ctx context.Context, f *serviceFlags) error {
	m, err := e.loginItems(f)
	if err != nil {
		return err
	}
	item, err := e.loginItem(f)
	if err != nil {
		return err
	}
	if f.show {
		text, err := m.Text(item)
		if err != nil {
			return usage(err)
		}
		return e.Write(text)
	}
	if err := m.Install(ctx, item); err != nil {
		return err
	}
	return e.printService(ctx, m, f)
}

// loginItem returns the command that serves the configuration, which has to be valid.
func (e *env) loginItem(f *serviceFlags) (i loginitem.Item, err error) {
	if _, err := e.load(); err != nil {
		return i, err
	}
	program, err := os.Executable()
	if err != nil {
		return i, fmt.Errorf("finding toolgate: %w", err)
	}
	i = loginitem.Item{Name: f.name, Command: []string{program, "serve"}, Path: os.Getenv("PATH")}
	for _, flag := range []struct{ name, path string }{{"--config", e.config}, {"--overlay", e.overlay}, {"--state", e.state}, {"--keys", e.keys}} {
		if flag.path == "" {
			continue
		}
		path, err := filepath.Abs(flag.path)
		if err != nil {
			return i, err
		}
		i.Command = append(i.Command, flag.name, path)
		if flag.name == "--config" {
			i.Dir = filepath.Dir(path)
		}
	}
	if f.envFile == "" {
		return i, nil
	}
	if i.EnvFile, err = filepath.Abs(f.envFile); err == nil {
		_, err = os.Stat(i.EnvFile)
	}
	if err != nil {
		return i, usage(fmt.Errorf("reading --env-file: %w", err))
	}
	return i, nil
}

func (e *env) printService(ctx context.Context, m *loginitem.Manager, f *serviceFlags) error {
	s, err := m.Status(ctx, f.name)
	if err != nil {
		return err
	}
	return e.Print("service", s)
}

// offerService asks whether toolgate is to start at login, unless the answer is given.
func (e *env) offerService(ctx context.Context, wanted, asks bool) error {
	if !wanted && (!asks || !e.confirm("start toolgate now, and whenever you log in?")) {
		return nil
	}
	return e.installService(ctx, &serviceFlags{name: "toolgate"})
}

// hintService says on stderr how to end what starts at login, if there is anything.
func (e *env) hintService() {
	f := &serviceFlags{name: "toolgate"}
	m, err := e.loginItems(f)
	if err != nil {
		return
	}
	if file, err := m.File(f.name); err == nil {
		if _, err := os.Stat(file); err == nil {
			fmt.Fprintln(e.err, "hint: toolgate still starts at login; toolgate service uninstall ends that")
		}
	}
}
