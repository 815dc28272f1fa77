package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/lockstep-kafka/lockstep/internal/config"
	"github.com/lockstep-kafka/lockstep/internal/plural"
	"github.com/lockstep-kafka/lockstep/internal/verify"
)

// exitNotCompared is verify's own; a wrong usage is the same.
const exitNotCompared = 2

type verifyFlags struct {
	config string
	sel    selection
	where  verify.Where
	opts   verify.Options // what flags set of it
	rate   config.Bytes
	quiet  bool
	json   bool
}

func verifyCommand() *cobra.Command {
	var v verifyFlags
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Compare source and destination through the wire, record by record",
		Long: `Compare a mirror's source with its destination, as clients see both: the source directly, the destination through
the proxy. Compared are offsets, leader epochs, timestamps and their type, keys, values and headers of every record,
where logs begin and end, and the ends of all leader epochs. Batches that are one to one are compared by their bytes, the
rest record by record; what read_committed readers don't see is skipped. Without --topic or --regex: all topics that the
mirror's configuration selects.

Each partition is compared up to where both sides are at the start, and to its first difference, which is printed. Of a
compacted topic a record may be on one side only, as the cleaners run at different times: then the last value of each key
is what has to be equal. What a cut takes away while it is compared is told as a difference, or as not compared: run it
again.

With --resume, what was found equal is kept in a file, and the next run goes on from there, unless a log was cut since;
compacted topics are compared from the start each time.

Exit codes: 0 equal, 1 different, 2 not (all) compared, or wrong usage. Nothing has to run but both clusters and the proxy.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			code, err := v.run(cmd)
			if err != nil {
				fmt.Fprintln(cmd.ErrOrStderr(), "lockstep:", err)
				if code == 0 {
					code = exitNotCompared
				}
			}
			if code != 0 {
				return &saidError{code: code}
			}
			return nil
		},
	}
	configFlag(cmd, &v.config)
	v.sel.flags(cmd, false)
	f := cmd.Flags()
	f.StringArrayVar(&v.where.Bootstrap, "destination", nil, "host:port of the destination's proxy; repeat it for several; default: the configuration's first listener")
	f.BoolVar(&v.where.TLS, "destination-tls", false, "use TLS to --destination (to a listener of the configuration: as that says)")
	f.StringVar(&v.where.CAFile, "destination-ca", "", "PEM file with the authorities to trust; default: the listener's own certificate, with --destination the system's")
	f.StringVar(&v.where.CertFile, "destination-cert", "", "PEM file with a client certificate; needs --destination-key")
	f.StringVar(&v.where.KeyFile, "destination-key", "", "PEM file with its key")
	f.StringVar(&v.where.Name, "destination-name", "", "name to verify in the certificate; default: the host dialled")
	f.Var(&v.rate, "rate", "most bytes to read in a second, both sides together, such as 50MiB; 0: no bound")
	f.IntVar(&v.opts.Parallel, "parallel", 4, "partitions compared at a time")
	f.StringVar(&v.opts.Resume, "resume", "", "file that keeps what was compared; it is made when it isn't there")
	f.BoolVar(&v.opts.CaughtUp, "caught-up", false, "compare up to the source's end: a destination that lags is different")
	f.IntVar(&v.opts.MaxKeys, "max-keys", 1_000_000, "most keys of a compacted partition in memory; if there are more, it is read several times")
	f.DurationVar(&v.opts.Patience, "patience", 30*time.Second, "how long to try again what can't be read")
	f.BoolVarP(&v.quiet, "quiet", "q", false, "no progress bar; it is only shown on a terminal")
	jsonFlag(cmd, &v.json)
	cmd.MarkFlagsMutuallyExclusive("topic", "regex")
	cmd.MarkFlagsRequiredTogether("destination-cert", "destination-key")
	return cmd
}

func (v *verifyFlags) options() (verify.Options, error) {
	c, err := config.Load(v.config)
	if err != nil {
		return verify.Options{}, err
	}
	o, err := verify.FromConfig(c, v.sel.Mirror, v.where)
	if err != nil {
		return verify.Options{}, err
	}
	if v.sel.Regex != "" {
		re, err := regexp.Compile(`\A(?:` + v.sel.Regex + `)\z`)
		if err != nil {
			return verify.Options{}, fmt.Errorf("--regex: %w", err)
		}
		o.Match = func(topic string, _ bool) bool { return re.MatchString(topic) }
	}
	o.Topics, o.Rate = v.sel.Topics, int(v.rate)
	o.Parallel, o.Resume, o.CaughtUp, o.MaxKeys, o.Patience = v.opts.Parallel, v.opts.Resume, v.opts.CaughtUp, v.opts.MaxKeys, v.opts.Patience
	return o, nil
}

func (v *verifyFlags) run(cmd *cobra.Command) (code int, err error) {
	o, err := v.options()
	if err != nil {
		return 0, err
	}
	bar := &verifyBar{to: cmd.ErrOrStderr()}
	if f, ok := bar.to.(*os.File); ok && !v.quiet && term.IsTerminal(int(f.Fd())) {
		o.Progress = bar.tell
	}
	r, err := verify.Run(cmd.Context(), o)
	bar.end()
	if err != nil && len(r.Partitions) == 0 {
		return 0, err
	}
	if v.json {
		err = errors.Join(err, printJSON(cmd.OutOrStdout(), r))
	} else {
		err = errors.Join(err, printVerify(cmd, &r))
	}
	switch {
	case r.Outcome == verify.Different:
		code = exitFailed
	case r.Outcome != verify.Equal:
		code = exitNotCompared
	}
	return code, err
}

// verifyBar shows the progress.
type verifyBar struct {
	to  io.Writer
	bar *progressbar.ProgressBar
}

func (b *verifyBar) tell(p verify.Progress) {
	if b.bar == nil {
		b.bar = progressbar.NewOptions64(max(p.Total, 1), progressbar.OptionSetWriter(b.to), progressbar.OptionSetDescription("comparing"),
			progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetItsString("offsets"),
			progressbar.OptionThrottle(200*time.Millisecond), progressbar.OptionClearOnFinish())
	}
	b.bar.Describe(fmt.Sprintf("%d MiB", p.Bytes>>20))
	_ = b.bar.Set64(p.Done)
}

func (b *verifyBar) end() {
	if b.bar != nil {
		_ = b.bar.Clear()
	}
}

// partitionNumber: a topic that is on one side only has none.
func partitionNumber(n int32) string {
	if n < 0 {
		return "-"
	}
	return num(int64(n))
}

func printVerify(cmd *cobra.Command, r *verify.Report) error {
	out := cmd.OutOrStdout()
	rows := make([]table.Row, 0, len(r.Partitions))
	for i := range r.Partitions {
		p := &r.Partitions[i]
		notes := append([]string{}, p.Notes...)
		if p.Error != "" {
			notes = append(notes, p.Error)
		}
		if p.Compacted {
			notes = append(notes, fmt.Sprintf("compacted: compared by last value per key, %s on one side only", plural.Of(p.OneSided, "record")))
		}
		if p.DestinationAborted > 0 {
			notes = append(notes, fmt.Sprintf("%d batches of transactions aborted on the destination", p.DestinationAborted))
		}
		rows = append(rows, table.Row{
			p.Topic, partitionNumber(p.Partition), p.Outcome, p.From, p.To, p.Records, fmt.Sprintf("%d / %d", p.ByBatch, p.ByRecord), p.Epochs, strings.Join(notes, "; "),
		})
	}
	err := printTable(out, table.Row{"topic", "partition", "outcome", "from", "to", "records", "batches whole / by records", "epochs", "notes"}, rows, 9)
	if err != nil {
		return err
	}
	for i := range r.Partitions {
		d := r.Partitions[i].Difference
		if d == nil {
			continue
		}
		fmt.Fprintf(out, "\n%s\n", d)
	}
	_, err = fmt.Fprintf(out, "%s: %s of %s compared, %d MiB read, %.1f s\n", r.Outcome, plural.Of(r.Records, "record"), plural.Of(len(r.Partitions), "partition"), r.Bytes>>20, r.Seconds)
	return err
}
