package xqtls

import (
	"strings"
	"testing"

	"github.com/grafana/sobek"

	"qtls.dev/qtls/internal/bench/shard"
	"qtls.dev/qtls/k6/openssl"
)

// argumentsOf a call are what a script writes between a call's parentheses.
func argumentsOf(t *testing.T, text string) []sobek.Value {
	t.Helper()
	js := sobek.New()
	array, err := js.RunString("[" + text + "]")
	var given []sobek.Value
	if err == nil {
		err = js.ExportTo(array, &given)
	}
	if err != nil {
		t.Fatal(err)
	}
	return given
}

func TestArgumentsOfRequests(t *testing.T) {
	for text, want := range map[string]request{
		"":          {path: "/"},
		"undefined": {path: "/"},
		"{}":        {path: "/"},
		"{}, null":  {path: "/"},
		`{path: "/a?b=%20", status: 404, size: 1048576}`: {path: "/a?b=%20", status: 404, size: 1 << 20},
	} {
		if got, err := parseRequest(argumentsOf(t, text), "path", "size", "status"); err != nil || got != want {
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
		`{path: "/"}, 200`:       "argument 2 is more than it takes",
	} {
		if got, err := parseRequest(argumentsOf(t, text), "path", "status"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %+v, %v, want %s", text, got, err, want)
		}
	}
	for _, text := range []string{"{size: 1023}", "{size: 1048577}", "{size: -1}", `{size: "1024"}`} {
		if _, err := parseRequest(argumentsOf(t, text), "size"); err == nil || !strings.Contains(err.Error(), "give bytes from 1024 to 1048576") {
			t.Errorf("%s: got %v", text, err)
		}
	}
}

// Who asks for more than a handshake would measure something else than meant.
func TestAHandshakeTakesNoArguments(t *testing.T) {
	for _, text := range []string{"", "undefined", "null"} {
		if err := atMost(0, argumentsOf(t, text)); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, text := range []string{`{path: "/"}`, "{}", "0", `undefined, ""`} {
		if result, err := (&client{}).Handshake(argumentsOf(t, text)...); err == nil || !strings.HasPrefix(err.Error(), "handshake: argument ") {
			t.Errorf("%s: got %+v, %v", text, result, err)
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
