package haproxy

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"qtls.dev/qtls/api/v1alpha1"
	"qtls.dev/qtls/internal/dataplane"
	"qtls.dev/qtls/internal/model"
)

// words are the strings of a gateway that a user chooses.
type words struct {
	namespace, name, listener, hostname, secret, group, backendHostname, ca string
}

func usual(ca string) words {
	return words{"shop", "web", "listener", "*.example.com", "web-ml-dsa-65", "shop:http", "shop.internal", ca}
}

// gatewayOf uses each word wherever it can come to stand.
func gatewayOf(w words) model.Gateway {
	post := mldsa65
	post.Secret = w.secret
	backends := []model.Backend{{Group: w.group, Weight: 1, TLS: &model.BackendTLS{Hostname: model.Hostname(w.backendHostname), CAs: w.ca}}}
	g := gateway(prefer,
		model.Port{Number: 443, Listeners: []model.Listener{
			with(https(w.listener, []model.Hostname{model.Hostname(w.hostname)}, post, p256), func(l *model.Listener) {
				l.ClientAuthentication = &model.ClientAuthentication{Required: true, CAs: w.ca, ForwardCertificate: true}
				l.Backends = backends
			}),
			{Name: "other", Protocol: v1alpha1.ProtocolTLS, Certificates: []model.Certificate{post}, Backends: backends},
			{Name: "pass", Protocol: v1alpha1.ProtocolTLSPassthrough, Hostnames: []model.Hostname{"pass.test"}, Backends: []model.Backend{{Group: w.group, Weight: 1}}},
		}})
	g.Namespace, g.Name = w.namespace, w.name
	return g
}

// shape is the configuration without its words: the first word and the number
// of words of each line, and the number of files and of their lines.
func shape(r dataplane.Revision) string {
	var out strings.Builder
	for _, text := range []string{r.Config, Backends(r, Assign(r, nil, nil))} {
		for line := range strings.Lines(text) {
			fields := strings.Fields(line)
			if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
				fmt.Fprintf(&out, "%d\n", min(len(fields), 1))
				continue
			}
			fmt.Fprintf(&out, "%s %d\n", fields[0], len(fields))
		}
	}
	var files []string
	for name, content := range r.Files {
		folder, _, _ := strings.Cut(name, "/")
		if folder == "ca" {
			content = "" // however many certificates there are
		}
		files = append(files, fmt.Sprintln(folder, strings.Count(content, "\n")))
	}
	slices.Sort(files) // the names of files are words, too
	out.WriteString(strings.Join(files, ""))
	fmt.Fprintln(&out, len(r.Certificates), len(r.Backends))
	return out.String()
}

// What must not come through, and would do harm where it did.
var harmful = []string{
	"", " ", "\n", "\t", "a b", "a\nb", "a\r\nglobal\n    stats socket /tmp/x", "a#b", `a\`, `a"b`, "a'b", "$HOME", "${HOME}", "a$b", "%[env(HOME)]", "%ci", "a,b", "a;b", "a|b", "{a}", "[a]", "(a)", "a)",
	"-f", "-m", "-i", "--", "!", "a!b", "..", "../x", "a/../../x", "/etc/passwd", "a\x00b", "ä", "a\u2028b", "a\u00a0b", "@a", "a@b", "*", "if", strings.Repeat("a", 5000),
}

func TestNoWordBreaksOutOfItsPlace(t *testing.T) {
	ca := string(authority(t))
	want, err := Render(gatewayOf(usual(ca)))
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range harmful {
		for what, change := range map[string]func(*words){
			"namespace":        func(w *words) { w.namespace = bad },
			"name":             func(w *words) { w.name = bad },
			"listener":         func(w *words) { w.listener = bad },
			"host name":        func(w *words) { w.hostname = bad },
			"Secret":           func(w *words) { w.secret = bad },
			"group":            func(w *words) { w.group = bad },
			"backend's name":   func(w *words) { w.backendHostname = bad },
			"authority's PEM":  func(w *words) { w.ca = bad },
			"after a good PEM": func(w *words) { w.ca = ca + bad },
		} {
			w := usual(ca)
			change(&w)
			got, err := Render(gatewayOf(w))
			if err == nil && shape(got) != shape(want) {
				t.Errorf("%s %q changes the configuration's shape", what, bad)
			}
			if err == nil && what != "after a good PEM" && bad != "if" && bad != "a/../../x" && len(bad) < 1000 {
				if !regexp.MustCompile(`^[A-Za-z0-9]`).MatchString(bad) || strings.ContainsAny(bad, " \n\t\"'\\#$%,;|{}[]()!@\x00") {
					t.Errorf("%s %q comes through", what, bad)
				}
			}
		}
	}
}

func TestWordsOfTheGreatestLengthComeThrough(t *testing.T) {
	ca := string(authority(t))
	label := strings.Repeat("a", 63)
	long := strings.Join([]string{label, label, label, label[:61]}, ".") // 253
	w := words{label, label[:48], label[:40], "*." + long[2:], long, label + ":" + label[:15], long, ca}
	r, err := Render(gatewayOf(w))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range r.Certificates {
		if base := strings.TrimPrefix(CertificateFile(c.Name), "certs/"); len(base) > 250 { // and a suffix while it is written
			t.Errorf("file name of %d bytes for Secret %q", len(base), c.Secret)
		}
	}
	other := long[:252] + "b"
	if certificateName(long) == certificateName(other) {
		t.Error("two Secrets share a file")
	}
}

// FuzzRender throws words at the renderer. Whatever it lets through has the
// shape of the usual configuration, and HAProxy takes it (asked for some of
// them, where the gateway's root file system is at hand).
func FuzzRender(f *testing.F) {
	ca := string(authority(f))
	want, err := Render(gatewayOf(usual(ca)))
	if err != nil {
		f.Fatal(err)
	}
	wanted := shape(want)
	add := func(w words) {
		f.Add(w.namespace, w.name, w.listener, w.hostname, w.secret, w.group, w.backendHostname, "")
	}
	add(usual(""))
	for _, bad := range harmful {
		add(words{bad, "web", "listener", "*.example.com", "secret", "shop:http", "shop.internal", ""})
		add(words{"shop", "web", bad, bad, bad, bad, bad, ""})
		w := usual("")
		w.hostname = "a" + bad
		add(w)
	}
	f.Add("shop", "web", "listener", "*.example.com", "secret", "shop:http", "shop.internal", "\n-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\nbind :1\n")
	root := os.Getenv("QTLS_GATEWAY_ROOTFS")
	passed := 0
	f.Fuzz(func(t *testing.T, namespace, name, listener, hostname, secret, group, backendHostname, after string) {
		w := words{namespace, name, listener, hostname, secret, group, backendHostname, ca + after}
		got, err := Render(gatewayOf(w))
		if err != nil {
			return
		}
		if shape(got) != wanted && listener != "other" && listener != "pass" && secret != p256.Secret {
			t.Errorf("%+q changes the configuration's shape", w)
		}
		for file := range got.Files {
			if !regexp.MustCompile(`^(clienthello\.lua|(ca|lists)/[A-Za-z0-9_.-]+)$`).MatchString(file) || strings.Contains(file, "..") {
				t.Errorf("%+q makes the file %q", w, file)
			}
		}
		if passed++; root == "" || passed%500 != 1 {
			return
		}
		dir := t.TempDir()
		got.Files[got.Backends[0].Groups[0].TLS.CAFile] = ca // a CERTIFICATE that is none is for package resolve to find
		for file := range got.Files {
			if strings.HasPrefix(file, "ca/") {
				got.Files[file] = ca
			}
		}
		writeTree(t, dir, got, Assign(got, nil, nil))
		if out, err := haproxyCheck(t)(dir); err != nil && listener != "other" && listener != "pass" {
			t.Errorf("HAProxy refuses %+q: %v\n%s", w, err, fmt.Sprint(out))
		}
	})
}
