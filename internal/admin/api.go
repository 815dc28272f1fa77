package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net"
	"net/http"
	"net/url"

	"github.com/lockstep-kafka/lockstep/internal/control"
)

// maxBody bounds a request's body.
const maxBody = 1 << 20

// API is the routes of /v1/mirrors, /v1/partitions, /v1/groups, /v1/topics,
// /v1/acls, /v1/instances, /v1/commands and /v1/settings. Errors are JSON: {error, remedy, kind,
// partitions}.
func API(s *control.Service) map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{
		"GET /v1/mirrors": func(w http.ResponseWriter, r *http.Request) {
			m, err := s.Mirrors(r.Context())
			answer(w, map[string]any{"mirrors": m}, err)
		},
		"GET /v1/partitions": func(w http.ResponseWriter, r *http.Request) {
			sel, err := selected(r.URL.Query())
			if err != nil {
				answer(w, nil, err)
				return
			}
			p, err := s.Partitions(r.Context(), sel)
			answer(w, map[string]any{"partitions": p}, err)
		},
		"GET /v1/topics": func(w http.ResponseWriter, r *http.Request) {
			sel, err := selected(r.URL.Query())
			if err != nil {
				answer(w, nil, err)
				return
			}
			t, left, err := s.Topics(sel)
			answer(w, map[string]any{"topics": t, "left_out": left}, err)
		},
		"GET /v1/acls": func(w http.ResponseWriter, r *http.Request) {
			a, err := s.ACLs(r.Context(), r.URL.Query().Get("mirror"))
			answer(w, a, err)
		},
		"GET /v1/groups": func(w http.ResponseWriter, r *http.Request) {
			q := r.URL.Query()
			sel := control.GroupSelection{Groups: q["group"], GroupRegex: q.Get("group_regex")}
			q.Del("group")
			q.Del("group_regex")
			var err error
			if sel.Selection, err = selected(q); err != nil {
				answer(w, nil, err)
				return
			}
			g, err := s.Groups(sel)
			answer(w, map[string]any{"groups": g}, err)
		},
		"GET /v1/instances": func(w http.ResponseWriter, _ *http.Request) {
			answer(w, map[string]any{"instances": s.Instances()}, nil)
		},
		"POST /v1/instances/forget": func(w http.ResponseWriter, r *http.Request) {
			var req control.ForgetRequest
			if err := read(w, r, &req); err != nil {
				answer(w, nil, err)
				return
			}
			res, err := s.Forget(r.Context(), req)
			answer(w, res, err)
		},
		"POST /v1/commands": func(w http.ResponseWriter, r *http.Request) {
			var req control.Request
			if err := read(w, r, &req); err != nil {
				answer(w, nil, err)
				return
			}
			res, err := s.Command(r.Context(), req)
			answer(w, res, err)
		},
		"POST /v1/settings": func(w http.ResponseWriter, r *http.Request) {
			var req control.SettingsRequest
			if err := read(w, r, &req); err != nil {
				answer(w, nil, err)
				return
			}
			res, err := s.Set(r.Context(), req)
			answer(w, res, err)
		},
	}
}

// selected is what a query's parameters select.
func selected(q url.Values) (control.Selection, error) {
	for k := range q {
		if k != "mirror" && k != "topic" && k != "regex" {
			return control.Selection{}, badRequest("unknown parameter "+k, "parameters are mirror, topic (repeated) and regex")
		}
	}
	return control.Selection{Mirror: q.Get("mirror"), Topics: q["topic"], Regex: q.Get("regex")}, nil
}

func badRequest(text, remedy string) error {
	return &control.Error{Kind: control.BadRequest, Text: text, Remedy: remedy}
}

// read reads a JSON body strictly. The content type has to be said, and the
// host to be an address: a web page in an operator's browser can send neither
// without being asked.
func read(w http.ResponseWriter, r *http.Request, into any) error {
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/json" {
		return badRequest("the request's content type is not application/json", "send Content-Type: application/json")
	}
	if r.Header.Get("Authorization") == "" && !localName(r.Host) {
		return badRequest(fmt.Sprintf("a command without token came for host %q", r.Host), "use the address of admin.address, or set admin.token_file")
	}
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		var large *http.MaxBytesError
		if errors.As(err, &large) {
			return badRequest(fmt.Sprintf("the request's body is larger than %d bytes", maxBody), "select topics by a regular expression")
		}
		return badRequest(fmt.Sprintf("the request's body can't be read: %v", err), "send one JSON object with the documented fields (docs/operations.md)")
	}
	if d.More() {
		return badRequest("something follows the request's JSON object", "send one JSON object")
	}
	return nil
}

func localName(host string) bool {
	h, _, err := net.SplitHostPort(host)
	if err != nil {
		h = host
	}
	return h == "localhost" || net.ParseIP(h) != nil
}

// statusOf is the HTTP status of an error's kind.
func statusOf(k control.ErrorKind) int {
	switch k {
	case control.BadRequest:
		return http.StatusBadRequest
	case control.NotFound:
		return http.StatusNotFound
	case control.Refused:
		return http.StatusConflict
	case control.Unavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

func answer(w http.ResponseWriter, v any, err error) {
	code := http.StatusOK
	if err != nil {
		var e *control.Error
		if !errors.As(err, &e) {
			e = &control.Error{Kind: control.Failed, Text: err.Error()}
		}
		code, v = statusOf(e.Kind), e
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	_ = e.Encode(v)
}
