package embedded

import (
	"bytes"
	"crypto/x509"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"qtls.dev/qtls/internal/keypair"
	"qtls.dev/qtls/internal/ticketstore"
)

var hosts = []string{"web-redis-0.web-redis.shop.svc", "web-redis-1.web-redis.shop.svc"}

func newCredentials(t *testing.T, now time.Time) *Credentials {
	t.Helper()
	c, err := New(hosts, now)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func secret(t *testing.T, c *Credentials) map[string][]byte {
	t.Helper()
	data, err := c.Data()
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestCredentialsReadBackFromTheirSecret(t *testing.T) {
	now := time.Now()
	data := secret(t, newCredentials(t, now))
	c, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	again := secret(t, c)
	if !maps.EqualFunc(data, again, bytes.Equal) {
		t.Error("what is read back is written otherwise: the servers would restart for nothing")
	}
	if _, err := x509.ParseCertificate(c.server.Chain[0].Raw); err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(data[KeyAuthority])
	for _, host := range hosts {
		if _, err := c.server.Chain[0].Verify(x509.VerifyOptions{Roots: pool, DNSName: host}); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
}

func TestEveryStoreHasItsOwnSecrets(t *testing.T) {
	a, b := secret(t, newCredentials(t, time.Now())), secret(t, newCredentials(t, time.Now()))
	for _, key := range []string{"operator-password", "agent-password", "ca.key", "tls.key", "ca.crt"} {
		if len(a[key]) == 0 || bytes.Equal(a[key], b[key]) {
			t.Errorf("%s is missing, or two stores have the same", key)
		}
	}
	if bytes.Equal(a["operator-password"], a["agent-password"]) {
		t.Error("both roles have one password")
	}
	if n := len(a["operator-password"]); n != 43 { // 256 bits in base64
		t.Errorf("a password has %d characters", n)
	}
}

func TestTheServersSeeHashesOfPasswords(t *testing.T) {
	data := secret(t, newCredentials(t, time.Now()))
	users := string(data[KeyUsers])
	for _, key := range []string{"operator-password", "agent-password"} {
		for _, file := range ServerFiles() {
			if bytes.Contains(data[file], data[key]) {
				t.Errorf("%s holds %s", file, key)
			}
		}
	}
	for _, want := range []string{"user default reset\n", "user operator reset on #", "user agent reset on #", "user probe reset on nopass +ping\n"} {
		if !strings.Contains(users, want) {
			t.Errorf("no %q in the users:\n%s", want, users)
		}
	}
	if strings.Count(users, "nopass") != 1 {
		t.Errorf("more than the probe needs no password:\n%s", users)
	}
}

func TestSoundCredentialsStayAndOthersAreMadeAnew(t *testing.T) {
	now := time.Now()
	c := newCredentials(t, now)
	sound := secret(t, c)
	stranger := secret(t, newCredentials(t, now))
	with := func(change map[string][]byte) map[string][]byte {
		data := maps.Clone(sound)
		maps.Copy(data, change)
		return data
	}
	const (
		same   = "nothing changes"
		server = "another certificate of the same authority"
		all    = "all is new"
	)
	for name, tc := range map[string]struct {
		data   map[string][]byte
		hosts  []string
		at     time.Time
		want   string
		reason string
	}{
		"new":                         {sound, hosts, now, same, ""},
		"with 130 days to its end":    {sound, hosts, now.Add(serverLife - 130*24*time.Hour), same, ""},
		"with 120 days to its end":    {sound, hosts, now.Add(serverLife - 120*24*time.Hour), server, "less than a third of its life left"},
		"expired":                     {sound, hosts, now.Add(serverLife + time.Hour), server, "less than a third of its life left"},
		"for other hosts":             {sound, hosts[:1], now, server, "the server's certificate is for [web-redis-0"},
		"an authority near its end":   {sound, hosts, now.Add(authorityLife - serverLife + time.Hour), all, "the authority ends"},
		"no Secret":                   {nil, hosts, now, all, "ca.crt and ca.key"},
		"no authority's key":          {with(map[string][]byte{"ca.key": nil}), hosts, now, all, "ca.crt and ca.key"},
		"another authority's key":     {with(map[string][]byte{"ca.key": stranger["ca.key"]}), hosts, now, all, "ca.crt and ca.key: the private key does not belong"},
		"of another authority":        {with(map[string][]byte{"tls.crt": stranger["tls.crt"], "tls.key": stranger["tls.key"]}), hosts, now, all, "tls.crt is not signed by ca.crt"},
		"another key":                 {with(map[string][]byte{"tls.key": stranger["tls.key"]}), hosts, now, all, "tls.crt and tls.key"},
		"a certificate for authority": {with(map[string][]byte{"ca.crt": sound["tls.crt"], "ca.key": sound["tls.key"]}), hosts, now, all, "ca.crt is not the certificate of an authority"},
		"no password":                 {with(map[string][]byte{"agent-password": nil}), hosts, now, all, "agent-password is not one that the operator has made"},
		"somebody's own password":     {with(map[string][]byte{"operator-password": []byte("hunter2")}), hosts, now, all, "operator-password"},
	} {
		t.Run(name, func(t *testing.T) {
			got, reason, err := Ensure(tc.data, tc.hosts, tc.at)
			if err != nil {
				t.Fatal(err)
			}
			data := secret(t, got)
			sameAuthority, sameServer := bytes.Equal(data["ca.crt"], sound["ca.crt"]), bytes.Equal(data["tls.crt"], sound["tls.crt"])
			samePasswords := bytes.Equal(data["agent-password"], sound["agent-password"]) && bytes.Equal(data["operator-password"], sound["operator-password"])
			was := all
			switch {
			case sameAuthority && sameServer && samePasswords:
				was = same
			case sameAuthority && samePasswords:
				was = server
			case sameAuthority || samePasswords:
				was = "some of it"
			}
			if was != tc.want {
				t.Errorf("%s, want: %s (%v)", was, tc.want, reason)
			}
			if (reason == nil) != (tc.want == same) || reason != nil && !strings.Contains(reason.Error(), tc.reason) {
				t.Errorf("reason %v, want %q in it", reason, tc.reason)
			}
			if reason != nil && strings.Contains(reason.Error(), "hunter2") {
				t.Errorf("reason %q shows a password", reason)
			}
			// Whatever it was, it is sound now.
			if _, again, err := Ensure(data, tc.hosts, tc.at); again != nil || err != nil {
				t.Errorf("what was made is not sound: %v, %v", again, err)
			}
			if at := got.RenewAt(); !at.After(tc.at) {
				t.Errorf("it is to be renewed at %v, which is past", at)
			}
		})
	}
}

func TestACertificateNeverOutlivesItsAuthority(t *testing.T) {
	now := time.Now()
	c := newCredentials(t, now)
	last := now.Add(authorityLife - serverLife - time.Minute)
	renewed, _, err := Ensure(secret(t, c), hosts, last)
	if err != nil {
		t.Fatal(err)
	}
	if leaf, authority := renewed.server.Chain[0], renewed.authority.Chain[0]; leaf.NotAfter.After(authority.NotAfter) {
		t.Errorf("the certificate ends at %v, its authority at %v", leaf.NotAfter, authority.NotAfter)
	}
}

func TestConnectionsOfEachRole(t *testing.T) {
	c := newCredentials(t, time.Now())
	data := secret(t, c)
	for _, role := range []Role{Operator, Agent} {
		got := c.Connection(role, hosts)
		if err := got.Validate(); err != nil {
			t.Errorf("%s: %v", role, err)
		}
		want := ticketstore.Connection{Mode: ticketstore.Members, Addresses: []string{hosts[0] + ":6379", hosts[1] + ":6379"}, CA: data[KeyAuthority],
			RequireHybrid: true, Username: string(role), Password: string(data[string(role)+"-password"]), Prefix: "qtls:"}
		if !got.Equal(want) {
			t.Errorf("%s: %+v, want %+v", role, got, want)
		}
	}
}

func TestTheSecretHasWhatTheServersNeedAndWhatTheOperatorKeeps(t *testing.T) {
	data := secret(t, newCredentials(t, time.Now()))
	want := append(ServerFiles(), "ca.key", "operator-password", "agent-password")
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(data)); !slices.Equal(got, want) {
		t.Errorf("keys %v, want %v", got, want)
	}
	if _, err := keypair.Parse(data[KeyCertificate], data[KeyPrivateKey]); err != nil {
		t.Error(err)
	}
	config := string(data[KeyConfig])
	for _, want := range []string{"port 0\n", "tls-port 6379\n", "tls-protocols TLSv1.3\n", "save \"\"\n", "appendonly no\n", "aclfile /etc/valkey/users.acl\n", "dir /data\n"} {
		if !strings.Contains(config, want) {
			t.Errorf("no %q in the configuration:\n%s", want, config)
		}
	}
}
