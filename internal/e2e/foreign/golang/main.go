// Command golang drives Go's Kafka clients through the cases of package foreign. It is a module of its own, so that
// the product doesn't depend on them.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// client is one library. Each call makes its own connections and closes them.
type client interface {
	codecs() []string
	produce(ctx context.Context, topic, codec string, values []string) ([]rec, error)
	// consume joins a group, reads n records, commits them and leaves.
	consume(ctx context.Context, topic, group string, n int, newProtocol bool) ([]rec, error)
	admin(ctx context.Context, create, mirrored string) (adminView, error)
	// txn commits c0…c2, aborts x0…x2, and commits d0, d1 together with offset 7 of the mirrored topic for a group.
	txn(ctx context.Context, topic, mirrored, group, id string) error
	// share reads n records in a share group, which is set to begin at the topic's start.
	share(ctx context.Context, topic, group string, n int) ([]rec, error)
}

type rec struct {
	p    int32
	o    int64
	k, v []byte
}

type adminView struct {
	Partitions int      `json:"partitions"`
	Addresses  []string `json:"addresses"`
	Groups     []string `json:"groups"`
	Start      int64    `json:"start"`
	End        int64    `json:"end"`
}

type topic struct {
	name  string
	count int
}

var bootstrap []string

func main() {
	a := map[string]string{}
	for _, x := range os.Args[1:] {
		k, v, _ := strings.Cut(x, "=")
		a[k] = v
	}
	bootstrap = strings.Split(a["bootstrap"], ",")
	var mirrored []topic
	for _, m := range strings.Split(a["mirrored"], ",") {
		name, n, _ := strings.Cut(m, ":")
		count, _ := strconv.Atoi(n)
		mirrored = append(mirrored, topic{name, count})
	}
	all := map[string]client{"franz-go": franz{}, "sarama": saramaClient{}, "kafka-go": segmentio{}}
	name := a["client"]
	r := run{name: name, c: all[name], prefix: a["prefix"] + "-" + name, mirrored: mirrored}
	for _, c := range strings.Split(a["cases"], ",") {
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		err := r.one(ctx, c)
		cancel()
		if err != nil {
			line(map[string]any{"client": name, "case": c, "error": err.Error()})
			continue
		}
		line(map[string]any{"client": name, "case": c, "done": true, "ms": time.Since(began).Milliseconds()})
	}
}

type run struct {
	name     string
	c        client
	prefix   string
	mirrored []topic
	written  int
}

func (r *run) one(ctx context.Context, c string) error {
	switch c {
	case "produce":
		for _, codec := range r.c.codecs() {
			var vs []string
			for i := range 10 {
				vs = append(vs, fmt.Sprintf("%s %s %d %s", r.name, codec, i, strings.Repeat("compressible ", 20)))
			}
			recs, err := r.c.produce(ctx, r.prefix, codec, vs)
			if err != nil {
				return fmt.Errorf("%s: %w", codec, err)
			}
			r.print(c, r.prefix, codec, 0, recs)
			r.written += len(vs)
		}
		return nil
	case "group", "kip848":
		for _, t := range append([]topic{{r.prefix, r.written}}, r.mirrored...) {
			group, half := r.prefix+"-"+c+"-"+t.name, t.count/2
			for session, n := range []int{half, t.count - half} {
				recs, err := r.c.consume(ctx, t.name, group, n, c == "kip848")
				r.print(c, t.name, "", session+1, recs)
				if err != nil {
					return fmt.Errorf("%s, session %d, %d of %d records: %w", t.name, session+1, len(recs), n, err)
				}
			}
		}
		return nil
	case "admin":
		v, err := r.c.admin(ctx, r.prefix+"-new", r.mirrored[0].name)
		if err != nil {
			return err
		}
		line(map[string]any{"client": r.name, "case": c, "admin": v})
		return nil
	case "txn":
		t := r.prefix + "-txn"
		if err := r.c.txn(ctx, t, r.mirrored[0].name, t+"-offsets", t+"-id"); err != nil {
			return err
		}
		recs, err := r.c.consume(ctx, t, t, 5, false)
		r.print(c, t, "", 0, recs)
		return err
	case "share":
		recs, err := r.c.share(ctx, r.prefix, r.prefix+"-share", r.written)
		r.print(c, r.prefix, "", 0, recs)
		if err != nil {
			return err
		}
		recs, err = r.c.share(ctx, r.mirrored[0].name, r.prefix+"-share-mirrored", 1)
		if err == nil {
			return fmt.Errorf("a share group read %d records of the mirrored topic", len(recs))
		}
		line(map[string]any{"client": r.name, "case": c, "refused": err.Error()})
		return nil
	}
	return fmt.Errorf("no case %q", c)
}

func (r *run) print(c, topic, codec string, session int, recs []rec) {
	for _, x := range recs {
		line(map[string]any{"client": r.name, "case": c, "topic": topic, "codec": codec, "session": session, "p": x.p, "o": x.o, "k": x.k, "v": x.v})
	}
}

func line(m map[string]any) {
	b, _ := json.Marshal(m)
	fmt.Println(string(b))
}
