package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"

	"github.com/lockstep-kafka/lockstep/internal/admin"
	"github.com/lockstep-kafka/lockstep/internal/control"
)

// verb is what the verbs that change something have in common.
type verb struct {
	to      target
	sel     selection
	req     control.Request
	wait    bool
	noWait  bool
	timeout time.Duration
	json    bool
	// rows prints a result for a person; nil: one row for each partition.
	print func(cmd *cobra.Command, r *control.Result) error
}

func (v *verb) command(name control.Verb, short, long string) *cobra.Command {
	v.req.Verb = name
	cmd := &cobra.Command{
		Use: string(name), Short: short, Long: long + "\n\n" + exitCodes, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return v.run(cmd) },
	}
	v.to.flags(cmd)
	v.sel.flags(cmd, true)
	f := cmd.Flags()
	f.BoolVar(&v.wait, "wait", true, "wait until it is done")
	f.BoolVar(&v.noWait, "no-wait", false, "only store what is wanted; the Locksteps do it")
	f.DurationVar(&v.timeout, "timeout", 2*time.Minute, "how long to wait")
	jsonFlag(cmd, &v.json)
	cmd.MarkFlagsMutuallyExclusive("wait", "no-wait")
	cmd.MarkFlagsMutuallyExclusive("topic", "regex", "all")
	return cmd
}

func (v *verb) run(cmd *cobra.Command) error {
	c, err := v.to.client(cmd)
	if err != nil {
		return err
	}
	if v.timeout < 0 {
		return &usageError{errors.New("--timeout may not be negative")}
	}
	v.req.Selection, v.req.By = v.sel.Selection, whoAmI()
	waiting := v.wait && !v.noWait
	res, err := v.until(cmd.Context(), c, waiting)
	if err != nil {
		return err
	}
	switch {
	case v.json:
		err = printJSON(cmd.OutOrStdout(), res)
	case v.print != nil:
		err = v.print(cmd, res)
	default:
		err = printOutcomes(cmd, res)
	}
	switch {
	case err != nil:
		return err
	case res.Failed:
		return &saidError{code: exitFailed}
	case !res.Done && waiting:
		if !v.json {
			fmt.Fprintf(cmd.ErrOrStderr(), "lockstep: not done after %s; the Locksteps go on with it. Run it again to wait for it.\n", v.timeout)
		}
		return &saidError{code: exitTimedOut}
	}
	return nil
}

// until asks until it is done, or failed, or the time is over.
func (v *verb) until(ctx context.Context, c *admin.Client, waiting bool) (*control.Result, error) {
	end := time.Now().Add(v.timeout)
	for {
		left := time.Until(end)
		v.req.WaitMillis = 0
		if waiting {
			v.req.WaitMillis = int(max(0, min(left, control.MaxWait-5*time.Second)) / time.Millisecond)
		}
		var res control.Result
		if err := c.Post(ctx, "/v1/commands", v.req, &res); err != nil {
			var ce *control.Error
			passing := errors.Is(err, admin.ErrUnreachable) || errors.As(err, &ce) && ce.Kind == control.Unavailable
			if !passing || !v.req.Poll || left <= 0 {
				return nil, err
			}
			// What was asked for is stored; the instance that answered is away.
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(500 * time.Millisecond):
			}
			continue
		}
		if res.Done || res.Failed || !waiting || left <= 0 {
			return &res, nil
		}
		v.req.Poll = true
	}
}

func printOutcomes(cmd *cobra.Command, r *control.Result) error {
	rows := make([]table.Row, 0, len(r.Partitions))
	for _, o := range r.Partitions {
		rows = append(rows, table.Row{o.Mirror, o.Topic, o.Partition.Partition, o.State, o.Outcome, outcomeNotes(o)})
	}
	return printTable(cmd.OutOrStdout(), table.Row{"mirror", "topic", "partition", "state", string(r.Verb), "notes"}, rows, 6)
}

func outcomeNotes(o control.Outcome) string {
	if o.Outcome == control.OutcomeDone {
		return ""
	}
	if o.Text != "" {
		return o.Text
	}
	return notes(o.Partition)
}
