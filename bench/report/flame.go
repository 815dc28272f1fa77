package report

import (
	"bufio"
	"fmt"
	"hash/fnv"
	"html"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/pprof/profile"
)

// Flame writes a CPU profile as a flame graph: width is time, what was called
// stands on its caller. Hover for names and shares.
func Flame(profilePath, svgPath string) error {
	f, err := os.Open(profilePath)
	if err != nil {
		return fmt.Errorf("flame graph: %w", err)
	}
	defer func() { _ = f.Close() }()
	p, err := profile.Parse(f)
	if err != nil {
		return fmt.Errorf("flame graph of %s: %w", profilePath, err)
	}
	out, err := os.Create(svgPath)
	if err != nil {
		return fmt.Errorf("flame graph: %w", err)
	}
	w := bufio.NewWriter(out)
	name := strings.TrimSuffix(filepath.Base(profilePath), filepath.Ext(profilePath))
	err = foldStacks(p).svg(w, name)
	if err == nil {
		err = w.Flush()
	}
	if cerr := out.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("flame graph %s: %w", svgPath, err)
	}
	return nil
}

type frame struct {
	name  string
	value int64
	kids  map[string]*frame
}

// foldStacks sums samples (their last value: CPU time) by call path.
func foldStacks(p *profile.Profile) *frame {
	root := &frame{name: "all"}
	for _, s := range p.Sample {
		v := s.Value[len(s.Value)-1]
		at := root
		at.value += v
		for i := len(s.Location) - 1; i >= 0; i-- { // the outermost caller is last
			lines := s.Location[i].Line
			for j := len(lines) - 1; j >= 0; j-- { // inlined ones are first
				name := "?"
				if lines[j].Function != nil {
					name = lines[j].Function.Name
				}
				if at.kids == nil {
					at.kids = map[string]*frame{}
				}
				k := at.kids[name]
				if k == nil {
					k = &frame{name: name}
					at.kids[name] = k
				}
				k.value += v
				at = k
			}
		}
	}
	return root
}

const (
	flameWidth = 1200.0
	flameRow   = 17
	flameLeast = 0.5 // points; narrower boxes aren't drawn
)

func (f *frame) depth(scale float64) int {
	if float64(f.value)*scale < flameLeast {
		return 0
	}
	d := 0
	for _, k := range f.kids {
		d = max(d, k.depth(scale))
	}
	return d + 1
}

func (f *frame) svg(w io.Writer, title string) error {
	scale := flameWidth / float64(max(f.value, 1))
	height := (f.depth(scale) + 2) * flameRow
	if _, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="monospace" font-size="11">`+
		"\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"+
		`<text x="2" y="12">%s: %.2f s of CPU time. Width is time, what was called stands on its caller; hover for whole names and shares.</text>`+"\n",
		int(flameWidth), height, html.EscapeString(title), float64(f.value)/1e9); err != nil {
		return err
	}
	if err := f.draw(w, 0, height-flameRow, scale, f.value); err != nil {
		return err
	}
	_, err := io.WriteString(w, "</svg>\n")
	return err
}

func (f *frame) draw(w io.Writer, x float64, y int, scale float64, total int64) error {
	width := float64(f.value) * scale
	if width < flameLeast {
		return nil
	}
	short, share := f.name[strings.LastIndexByte(f.name, '/')+1:], fmt.Sprintf(" %.0f%%", 100*float64(f.value)/float64(total))
	switch fit := int(width / 6.8); {
	case len(short)+len(share) <= fit:
		short += share
	case len(short) > fit:
		short = short[:max(fit-1, 0)]
	}
	h := fnv.New32a()
	_, _ = h.Write([]byte(f.name))
	n := h.Sum32()
	if _, err := fmt.Fprintf(w, `<g><title>%s: %.1f%%</title><rect x="%.1f" y="%d" width="%.1f" height="%d" fill="rgb(%d,%d,%d)" stroke="white" stroke-width="0.5"/>`+
		`<text x="%.1f" y="%d">%s</text></g>`+"\n", html.EscapeString(f.name), 100*float64(f.value)/float64(total), x, y, width, flameRow-1,
		205+n%50, 110+n>>8%110, 60+n>>16%40, x+2, y+12, html.EscapeString(short)); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(f.kids)) {
		k := f.kids[name]
		if err := k.draw(w, x, y-flameRow, scale, total); err != nil {
			return err
		}
		x += float64(k.value) * scale
	}
	return nil
}
