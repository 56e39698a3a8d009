package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/audit"
)

func auditCommand(e *env) *cobra.Command {
	c := &cobra.Command{
		Use: "audit", Short: "read and verify the audit trail",
	}
	return group(c, auditTail(e), auditVerify(e))
}

func auditTail(e *env) *cobra.Command {
	var n int
	var follow bool
	c := &cobra.Command{
		Use: "tail", Short: "print the last records, one JSON document a line", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if e.addr != "" {
				return e.tailRemote(c.Context(), n, follow)
			}
			return e.tailLocal(c.Context(), n, follow)
		},
	}
	c.Flags().IntVarP(&n, "lines", "n", 10, "how many records")
	c.Flags().BoolVarP(&follow, "follow", "f", false, "follow the trail as records are written")
	c.Flags().StringVar(&e.addr, "addr", "", "URL of an admin listener to ask instead")
	return c
}

func (e *env) tailLocal(ctx context.Context, n int, follow bool) error {
	dir, err := e.trail()
	if err != nil {
		return err
	}
	for line, err := range audit.Tail(ctx, dir, audit.TailOptions{Records: n, Follow: follow}) {
		switch {
		case errors.Is(err, context.Canceled):
			return nil
		case err != nil:
			return missing(err)
		}
		if err := e.write(string(line) + "\n"); err != nil {
			return err
		}
	}
	return nil
}

func (e *env) tailRemote(ctx context.Context, n int, follow bool) error {
	path := "/v1/audit/tail?n=" + strconv.Itoa(n)
	if follow {
		path += "&follow=1"
	}
	res, err := e.askAdmin(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if _, err := io.Copy(e.out, res.Body); err != nil && ctx.Err() == nil {
		return fmt.Errorf("reading the trail: %w", err)
	}
	return nil
}

func auditVerify(e *env) *cobra.Command {
	return &cobra.Command{
		Use: "verify", Short: "verify every chain of the trail from its files", Args: cobra.NoArgs,
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
	records := 0
	for _, c := range rep.Chains {
		records += c.Records
	}
	err := e.print("verified", struct {
		OK      bool          `json:"ok"`
		Chains  []audit.Chain `json:"chains"`
		Records int           `json:"-"`
	}{rep.OK(), rep.Chains, records})
	if !rep.OK() {
		err = errors.Join(err, &exit{code: exitAudit, err: errors.New("the audit trail does not verify")})
	}
	return err
}
