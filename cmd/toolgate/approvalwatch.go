package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/toolgate/toolgate/console"
)

// approvalReconcile records the outcome that somebody found out at the other end.
func approvalReconcile(e *env) *cobra.Command {
	var outcome, reason string
	c := &cobra.Command{
		Use: "reconcile ID", Short: "say what became of a call whose outcome is unknown", Args: cobra.ExactArgs(1),
		RunE: func(c *cobra.Command, args []string) error {
			return e.postDecision(c.Context(), ticketPath(args[0])+"/reconcile", map[string]string{"outcome": outcome, "reason": reason})
		},
	}
	c.Flags().StringVar(&outcome, "outcome", "", "done = it took effect, failed = it did not")
	c.Flags().StringVar(&reason, "reason", "", "how you know; required")
	return c
}

func approvalWatch(e *env) *cobra.Command {
	after := int64(-1)
	c := &cobra.Command{
		Use: "watch", Short: "print every change of the tickets that you see, as it happens", Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			path := "/v1/approvals/watch"
			if after >= 0 {
				path += "?after=" + strconv.FormatInt(after, 10)
			}
			return e.watch(c.Context(), path)
		},
	}
	c.Flags().Int64Var(&after, "after", after, "number of the last change that you know; 0 = from the first (default: from now on)")
	return c
}

func (e *env) watch(ctx context.Context, path string) error {
	res, err := e.askAdmin(ctx, http.MethodGet, path, nil)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	lines, last := bufio.NewReader(res.Body), int64(-1)
	for {
		line, err := lines.ReadBytes('\n')
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			return watchEnded(err, last)
		}
		if last, err = e.printChange(line); err != nil {
			return err
		}
	}
}

// printChange prints one line of a watch and returns its number.
func (e *env) printChange(line []byte) (int64, error) {
	var c console.TicketEvent
	if err := json.Unmarshal(line, &c); err != nil {
		return 0, fmt.Errorf("reading the answer: %w", err)
	}
	if e.output == "json" {
		return c.Seq, e.write(string(line))
	}
	return c.Seq, e.write(renderReport("change", c))
}

// watchEnded reports that the server ended the connection, and how to continue.
func watchEnded(err error, last int64) error {
	hint := "hint: watch again"
	if last >= 0 {
		hint += " with --after " + strconv.FormatInt(last, 10)
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("toolgate ended it")
	}
	return &exit{code: exitUnreachable, err: fmt.Errorf("watching tickets: %w\n%s", err, hint)}
}
