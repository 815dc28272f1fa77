package docs_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-kafka/lockstep/internal/config"
)

// root is the repository's root, seen from this package.
const root = "../.."

// pages are README.md and docs/*.md, by path from the root.
func pages(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(root + "/docs/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	out := map[string]string{}
	for _, p := range append(paths, root+"/README.md") {
		b, err := os.ReadFile(p)
		require.NoError(t, err)
		rel, err := filepath.Rel(root, p)
		require.NoError(t, err)
		out[rel] = string(b)
	}
	return out
}

func page(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, name))
	require.NoError(t, err)
	return string(b)
}

// block is a fenced code block.
type block struct{ lang, text string }

// split takes a page apart: prose, without its code blocks, and the blocks.
func split(t *testing.T, name, text string) (prose string, blocks []block) {
	t.Helper()
	var b strings.Builder
	var cur *block
	for line := range strings.Lines(text) {
		lang, fence := strings.CutPrefix(strings.TrimRight(line, "\n"), "```")
		switch {
		case fence && cur == nil:
			cur = &block{lang: lang}
		case fence:
			require.Empty(t, lang, "%s: a code block ends with more than its fence", name)
			blocks = append(blocks, *cur)
			cur = nil
		case cur != nil:
			cur.text += line
		default:
			b.WriteString(line)
		}
	}
	require.Nil(t, cur, "%s: a code block has no end", name)
	return b.String(), blocks
}

var (
	linkRE    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	headingRE = regexp.MustCompile(`(?m)^#+ +(.+?) *$`)
	slugRE    = regexp.MustCompile(`[^\p{L}\p{N}\- _]`)
)

// anchors are the headings of a page as GitHub links to them.
func anchors(prose string) map[string]bool {
	out := map[string]bool{}
	for _, m := range headingRE.FindAllStringSubmatch(prose, -1) {
		out[strings.ReplaceAll(slugRE.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-")] = true
	}
	return out
}

func TestLinksResolve(t *testing.T) {
	all := pages(t)
	prose := map[string]string{}
	for name, text := range all {
		prose[name], _ = split(t, name, text)
	}
	for name, text := range prose {
		for _, m := range linkRE.FindAllStringSubmatch(text, -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				t.Errorf("%s: %s leaves the repository", name, m[1])
				continue
			}
			to := name
			if target != "" {
				to = filepath.Join(filepath.Dir(name), target)
				if _, err := os.Stat(filepath.Join(root, to)); err != nil {
					t.Errorf("%s: link to %s: %v", name, m[1], err)
					continue
				}
			}
			if anchor != "" && !anchors(prose[to])[anchor] {
				t.Errorf("%s: link to %s: no such heading in %s", name, m[1], to)
			}
		}
	}
}

// What only means something on the machine where it was written has no place
// in a page.
func TestNothingOfOneMachine(t *testing.T) {
	for name, text := range pages(t) {
		for _, bad := range []string{"/work/", "/tmp/", "/root/", "/home/"} {
			require.NotContains(t, text, bad, name)
		}
	}
}

// The README shows the example configuration as it is.
func TestReadmeShowsTheExample(t *testing.T) {
	_, blocks := split(t, "README.md", page(t, "README.md"))
	var shown []string
	for _, b := range blocks {
		if b.lang == "yaml" {
			shown = append(shown, b.text)
		}
	}
	require.Equal(t, []string{page(t, "deploy/lockstep.yaml")}, shown)
}

// The examples of these pages are configurations.
func TestExamplesLoad(t *testing.T) {
	for name, want := range map[string]int{"docs/listeners.md": 6, "docs/security.md": 2} {
		_, blocks := split(t, name, page(t, name))
		n := 0
		for _, b := range blocks {
			if b.lang == "yaml" {
				n++
				_, err := config.Parse([]byte(b.text))
				require.NoError(t, err, b.text)
			}
		}
		require.Equal(t, want, n, name)
	}
}

var fileRE = regexp.MustCompile("`([^`\\s]+)`")

// Every Go file of the packages that matter stands in the file map of
// docs/design.md, and nothing stands there that is gone.
func TestFileMap(t *testing.T) {
	text := page(t, "docs/design.md")
	_, text, ok := strings.Cut(text, "## File map")
	require.True(t, ok)
	folders := []string{"epoch", "protocol", "internal/ledger", "mirror", "proxy"}
	for i, folder := range folders {
		_, part, ok := strings.Cut(text, "**`"+folder+"/`**")
		require.True(t, ok, "no part for %s", folder)
		next := "**Elsewhere**"
		if i+1 < len(folders) {
			next = "**`" + folders[i+1] + "/`**"
		}
		part, _, ok = strings.Cut(part, next)
		require.True(t, ok)
		named := map[string]bool{}
		for line := range strings.Lines(part) {
			if !strings.HasPrefix(line, "| `") {
				continue
			}
			for _, m := range fileRE.FindAllStringSubmatch(strings.SplitN(line, "|", 3)[1], -1) {
				named[m[1]] = true
				found, err := filepath.Glob(filepath.Join(root, folder, m[1]))
				require.NoError(t, err)
				if len(found) == 0 {
					t.Errorf("docs/design.md names %s/%s, which doesn't exist", folder, m[1])
				}
			}
		}
		files, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, f := range files {
			if base := filepath.Base(f); !strings.HasSuffix(base, "_test.go") && !named[base] {
				t.Errorf("docs/design.md: the file map lacks %s/%s: add a line that says what it is for", folder, base)
			}
		}
	}
}

// Where docs/design.md says in which file something is, it is there; files that
// pages name by path exist.
func TestPlaces(t *testing.T) {
	design := page(t, "docs/design.md")
	places := regexp.MustCompile("`([\\w.]+)`\\s+\\(`((?:[\\w-]+/)+\\w+\\.go)`").FindAllStringSubmatch(design, -1)
	require.NotEmpty(t, places)
	for _, m := range places {
		name := m[1][strings.LastIndexByte(m[1], '.')+1:]
		if !regexp.MustCompile(`\b` + name + `\b`).MatchString(page(t, m[2])) {
			t.Errorf("docs/design.md: %s is not in %s", m[1], m[2])
		}
	}
	for name, text := range pages(t) {
		for _, m := range regexp.MustCompile("`((?:[\\w-]+/)+[\\w.-]+\\.[a-z]+)`").FindAllStringSubmatch(text, -1) {
			if strings.HasPrefix(m[1], "testdata/") {
				continue // of the package that the text is about
			}
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				t.Errorf("%s names %s: %v", name, m[1], err)
			}
		}
	}
}

// Every test that docs/design.md and docs/cases.md name is there.
func TestNamedTestsExist(t *testing.T) {
	have := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && path != root {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`).FindAllStringSubmatch(string(b), -1) {
			have[m[1]] = true
		}
		return nil
	})
	require.NoError(t, err)
	for _, name := range []string{"docs/design.md", "docs/cases.md"} {
		named := regexp.MustCompile("`((?:Test|Fuzz)\\w+)`").FindAllStringSubmatch(page(t, name), -1)
		require.NotEmpty(t, named)
		for _, m := range named {
			if !have[m[1]] {
				t.Errorf("%s names the test %s, which doesn't exist", name, m[1])
			}
		}
	}
}
