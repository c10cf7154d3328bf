package options

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
)

// parse takes an object as a script writes it.
func parse(t testing.TB, object string) (Options, error) {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(object), &m); err != nil {
		t.Fatal(err)
	}
	return Parse(m)
}

const (
	authority   = `"ca": "-----BEGIN CERTIFICATE-----"`
	certificate = `"certificate": "-----BEGIN CERTIFICATE-----"`
	secret      = `"key": "-----BEGIN PRIVATE KEY-----"`
)

func TestDefaults(t *testing.T) {
	got, err := parse(t, `{"host": "gateway.example", `+authority+`}`)
	want := Options{
		Host: "gateway.example", Port: 443, SNI: "gateway.example", MinVersion: "1.3", MaxVersion: "1.3", Tickets: 1,
		CA: "-----BEGIN CERTIFICATE-----", Timeout: 10 * time.Second,
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestAllOptions(t *testing.T) {
	got, err := parse(t, `{"host": "10.0.0.1", "port": 8443, "sni": "a.example", "groups": ["X25519MLKEM768", "X25519"],
		"signatureAlgorithms": ["mldsa65"], "minVersion": "1.2", "maxVersion": "1.3", "resumption": true, "tickets": 2,
		`+authority+`, `+certificate+`, `+secret+`, "provider": "/lib/oqsprovider.so", "properties": "?provider=oqsprovider", "timeout": "1.5s"}`)
	want := Options{
		Host: "10.0.0.1", Port: 8443, SNI: "a.example", Groups: []string{"X25519MLKEM768", "X25519"}, SignatureAlgorithms: []string{"mldsa65"},
		MinVersion: "1.2", MaxVersion: "1.3", Resumption: true, Tickets: 2,
		CA: "-----BEGIN CERTIFICATE-----", Certificate: "-----BEGIN CERTIFICATE-----", Key: "-----BEGIN PRIVATE KEY-----",
		Provider: "/lib/oqsprovider.so", Properties: "?provider=oqsprovider", Timeout: 1500 * time.Millisecond,
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
}

// A host that is an address is no name that could be sent (RFC 6066, 3).
func TestAnAddressIsNoServerName(t *testing.T) {
	for _, host := range []string{"10.0.0.1", "::1"} {
		if o, err := parse(t, `{"host": "`+host+`", `+authority+`}`); err != nil || o.SNI != "" {
			t.Errorf("%s: SNI %q, %v", host, o.SNI, err)
		}
	}
}

func TestErrorsNameTheOptionAndTheRemedy(t *testing.T) {
	for object, want := range map[string]string{
		`{"host": "h", "sigalgs": "x"}`:                                `option "sigalgs" is unknown: there are ca, certificate, groups, host,`,
		`{"host": ""}`:                                                 `option host: it is empty: give a name or an address`,
		`{}`:                                                           `option host is missing: give a name`,
		`{"host": null}`:                                               `option host: there is no value`,
		`{"host": 5}`:                                                  `option host: 5: give a name`,
		`{"host": "a b"}`:                                              `option host: "a b": give`,
		`{"host": "h", "port": "443"}`:                                 `option port: "443": give a number from 1 to 65535`,
		`{"host": "h", "port": 0}`:                                     `option port: 0: give`,
		`{"host": "h", "port": 1.5}`:                                   `option port: 1.5: give`,
		`{"host": "h", "port": 1e300}`:                                 `option port: 1e+300: give`,
		`{"host": "h", "groups": []}`:                                  `option groups: it is empty: give an array of groups`,
		`{"host": "h", "groups": "X25519"}`:                            `option groups: "X25519": give an array`,
		`{"host": "h", "groups": [""]}`:                                `option groups: []: give`,
		`{"host": "h", "groups": ["a:b"]}`:                             `option groups: [a:b]: give`,
		`{"host": "h", "groups": ["X25519", 5]}`:                       `option groups: [X25519 5]: give`,
		`{"host": "h", "minVersion": "1.1"}`:                           `option minVersion: "1.1": give "1.2" or "1.3"`,
		`{"host": "h", "resumption": "yes"}`:                           `option resumption: "yes": give true or false`,
		`{"host": "h", "tickets": -1}`:                                 `option tickets: -1: give a number from 0 to 16`,
		`{"host": "h", "ca": "/ca.pem"}`:                               `option ca: "/ca.pem": give certificates in PEM, as open()`,
		`{"host": "h", "timeout": 5}`:                                  `option timeout: 5: give a duration`,
		`{"host": "h", "timeout": "0s"}`:                               `option timeout: "0s": give`,
		`{"host": "h", "timeout": "2m"}`:                               `option timeout: "2m": give`,
		`{"host": "h", "provider": "oqsprovider.so"}`:                  `option provider: "oqsprovider.so": give the name of a provider, or the absolute path of its module`,
		`{"host": "h", "provider": "/lib/oqsprovider"}`:                `option provider: "/lib/oqsprovider": give`,
		`{"host": "h", "provider": "lib/oqsprovider.so"}`:              `option provider: "lib/oqsprovider.so": give`,
		`{"host": "h"}`:                                                `option ca is missing: give the authority of the server's certificate, or insecureSkipVerify: true`,
		`{"host": "h", "insecureSkipVerify": false}`:                   `option ca is missing`,
		`{"host": "h", "insecureSkipVerify": true, ` + authority + `}`: `option insecureSkipVerify: with ca it would verify nothing`,
		`{"host": "h", ` + authority + `, ` + secret + `}`:             `option certificate is missing`,
		`{"host": "h", ` + authority + `, ` + certificate + `}`:        `option key is missing`,
		`{"host": "h", ` + authority + `, "minVersion": "1.3", "maxVersion": "1.2"}`: `option minVersion: 1.3 is above maxVersion`,
		`{"host": "h", ` + authority + `, "resumption": true, "tickets": 0}`:         `option tickets: with 0 of them there is nothing to resume`,
	} {
		if _, err := parse(t, object); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s:\n got %v\nwant %s", object, err, want)
		}
	}
}

func TestNoErrorShowsAKey(t *testing.T) {
	_, err := parse(t, `{"host": "h", "key": "MC4CAQAwBQYDK2VwBCIEIA"}`)
	if err == nil || strings.Contains(err.Error(), "MC4CAQ") {
		t.Errorf("got %v", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"host": "h", "port": 443, "groups": ["X25519"], "ca": "-----BEGIN CERTIFICATE-----", "timeout": "1s"}`))
	f.Add([]byte(`{"host": "::1", "insecureSkipVerify": true, "tickets": 0, "maxVersion": "1.2", "minVersion": "1.2"}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var object map[string]any
		if json.Unmarshal(text, &object) != nil {
			return
		}
		o, err := Parse(object)
		if err != nil {
			if !strings.HasPrefix(err.Error(), "option ") {
				t.Errorf("%s: the error names no option: %v", text, err)
			}
			return
		}
		if o.Host == "" || o.Port < 1 || o.Port > 65535 || o.Timeout <= 0 || (o.CA == "") != o.InsecureSkipVerify || o.MinVersion > o.MaxVersion {
			t.Errorf("%s: %+v", text, o)
		}
		for _, name := range append(o.Groups, o.SignatureAlgorithms...) {
			if name == "" || strings.ContainsAny(name, ": \x00") {
				t.Errorf("%s: OpenSSL would read %q as something else", text, name)
			}
		}
		for name := range object { // nothing given was left aside
			if _, known := fields[name]; !known {
				t.Errorf("%s: %q was dropped", text, name)
			}
		}
	})
}
