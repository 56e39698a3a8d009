package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/audit"
)

func auditCommand(e *env) *cobra.Command {
	c := &cobra.Command{
		Use: "audit", Short: "read and verify the audit trail",
		Example: `  toolgate audit verify
  toolgate audit verify --state /var/lib/toolgate -o json
  toolgate audit tail -n 20
  toolgate audit tail --follow`,
	}
	return group(c, auditTail(e), auditVerify(e))
}

// trail is the audit directory: of --state, else of the configuration.
func (e *env) trail() (string, error) {
	if e.state != "" {
		return filepath.Join(e.state, "audit"), nil
	}
	cfg, err := e.load()
	if err != nil {
		return "", err
	}
	return filepath.Join(cfg.State, "audit"), nil
}

func auditTail(e *env) *cobra.Command {
	var n int
	var follow bool
	c := &cobra.Command{
		Use: "tail", Short: "print the last records, one JSON document a line", Args: cobra.NoArgs,
		Long:    "tail reads the files of the state directory, or with --addr a running toolgate's admin listener (role approver or auditor).",
		Example: "  toolgate audit tail -n 20 --follow",
		RunE: func(c *cobra.Command, _ []string) error {
			if e.addr != "" {
				return e.tailRemote(c.Context(), n, follow)
			}
			dir, err := e.trail()
			if err != nil {
				return err
			}
			return e.tailLocal(c.Context(), dir, n, follow)
		},
	}
	c.Flags().IntVarP(&n, "lines", "n", 10, "how many records")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "go on as records are written")
	c.Flags().StringVar(&e.addr, "addr", "", "URL of an admin listener to ask instead")
	return c
}

func (e *env) tailLocal(ctx context.Context, dir string, n int, follow bool) error {
	for line, err := range audit.Tail(ctx, dir, audit.TailOptions{Records: n, Follow: follow}) {
		if errors.Is(err, context.Canceled) {
			return nil
		}
		if err != nil {
			return missing(err)
		}
		if _, err := fmt.Fprintf(e.out, "%s\n", line); err != nil {
			return fmt.Errorf("printing: %w", err)
		}
	}
	return nil
}

func (e *env) tailRemote(ctx context.Context, n int, follow bool) error {
	a, err := e.admin()
	if err != nil {
		return err
	}
	path := "/v1/audit/tail?n=" + strconv.Itoa(n)
	if follow {
		path += "&follow=1"
	}
	res, err := a.send(ctx, "GET", path, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(e.out, res.Body); err != nil && ctx.Err() == nil {
		return fmt.Errorf("reading the trail: %w", err)
	}
	return nil
}

// missing makes a file that is not there a matter of where one looked.
func missing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return usage(fmt.Errorf("%w\nhint: name the state directory with --state, or the configuration with --config", err))
	}
	return err
}

func auditVerify(e *env) *cobra.Command {
	return &cobra.Command{
		Use: "verify", Short: "verify every chain of the trail from its files", Args: cobra.NoArgs,
		Long: `verify recomputes every hash chain under the state directory and compares it with
the noted head. It needs only the files. Exit 0: whole; 20: not, and it says where.`,
		Example: "  toolgate audit verify --state .toolgate",
		RunE: func(*cobra.Command, []string) error {
			dir, err := e.trail()
			if err != nil {
				return err
			}
			rep, err := audit.Verify(dir)
			if err != nil {
				return missing(err)
			}
			return e.verdict(rep)
		},
	}
}

func (e *env) verdict(rep audit.Report) error {
	bad := error(nil)
	if !rep.OK() {
		bad = &exit{code: exitAudit, err: errors.New("the audit trail does not verify")}
	}
	if e.output == "json" {
		return errors.Join(e.json(map[string]any{"ok": rep.OK(), "chains": rep.Chains}), bad)
	}
	records := 0
	for _, c := range rep.Chains {
		records += c.Records
		for _, p := range c.Problems {
			fmt.Fprintf(e.out, "broken: %s\n", p)
		}
		for _, t := range c.Torn {
			fmt.Fprintf(e.out, "torn: %s: an unfinished last line, never acknowledged\n", t)
		}
		for _, u := range c.Unfinished {
			fmt.Fprintf(e.out, "unfinished: decision %d of %s has no outcome: running, or its process died\n", u.Seq, c.Instance)
		}
	}
	if bad == nil {
		fmt.Fprintf(e.out, "ok: %d records in %d chains\n", records, len(rep.Chains))
	}
	return bad
}
