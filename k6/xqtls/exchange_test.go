package xqtls

import (
	"strings"
	"testing"

	"github.com/grafana/sobek"

	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/k6/openssl"
)

// argument is what a script writes between a call's parentheses.
func argument(t *testing.T, text string) sobek.Value {
	t.Helper()
	if text == "" {
		return nil // the script gave none
	}
	v, err := sobek.New().RunString("(" + text + ")")
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestArgumentsOfRequests(t *testing.T) {
	for text, want := range map[string]request{
		"":          {path: "/"},
		"undefined": {path: "/"},
		"{}":        {path: "/"},
		`{path: "/a?b=%20", status: 404, size: 1048576}`: {path: "/a?b=%20", status: 404, size: 1 << 20},
	} {
		if got, err := parseRequest(argument(t, text), "path", "size", "status"); err != nil || got != want {
			t.Errorf("%s: got %+v, %v", text, got, err)
		}
	}
}

func TestWhatIsWrongWithARequestIsSaid(t *testing.T) {
	for text, want := range map[string]string{
		`{size: 1024}`:           `"size" is unknown: there are path, status`, // request() sends no body
		`"/"`:                    "options of type string: give an object",
		`null`:                   "no options: give an object",
		`{path: "x"}`:            `path "x": give one that begins with /`,
		`{path: "/a b"}`:         `path "/a b": give`,
		`{path: "/\r\nX: y"}`:    "path", // would be a header
		`{path: 5}`:              `path "5": give`,
		`{status: "200"}`:        "status 200: give an HTTP status",
		`{status: 99}`:           "status 99: give",
		`{status: 200.5}`:        "status 200.5: give",
		`{path: "/", statu: 20}`: `"statu" is unknown`,
	} {
		if got, err := parseRequest(argument(t, text), "path", "status"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %+v, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"{size: 1023}", "{size: 1048577}", "{size: -1}", `{size: "1024"}`} {
		if _, err := parseRequest(argument(t, text), "size"); err == nil || !strings.Contains(err.Error(), "give bytes from 1024 to 1048576") {
			t.Errorf("%s: got %v", text, err)
		}
	}
}

func TestErrorsOnAConnectionHaveTheirClass(t *testing.T) {
	for want, err := range map[shard.Failure]error{
		shard.Timeout: &openssl.Failed{Class: shard.Timeout, Message: "m"},
		shard.HTTP:    &unexpected{"m"},
		shard.Other:   errNamed("m"),
	} {
		if class, message := classify(err); class != want || message != "m" {
			t.Errorf("%v: %s, %s", err, class, message)
		}
	}
}

type errNamed string

func (e errNamed) Error() string { return string(e) }
