package delayserver

// What a client does with the members of a cluster, which are scripts on real sockets.

import (
	"errors"
	"sync"
	"testing"
)

// member answers each request of each connection: hello and ping as a server does, others by serve.
type member struct {
	address string

	lock   sync.Mutex
	asked  []string
	shards int // of its cluster
}

func (m *member) count(operation string) int {
	m.lock.Lock()
	defer m.lock.Unlock()
	found := 0
	for _, each := range m.asked {
		if each == operation {
			found++
		}
	}
	return found
}

// begin starts a member. serve gives the result of a request, or an error in its place; nil: the member dies.
func begin(t *testing.T, serve func(operation string) map[string]any) *member {
	t.Helper()
	m := &member{}
	dead := false
	m.address = listenFor(t, func(p *peer, _ int) {
		for !dead {
			id, operation, _ := p.request()
			if operation == "" {
				return
			}
			m.lock.Lock()
			m.asked = append(m.asked, operation)
			m.lock.Unlock()
			result := map[string]any{"version": 1, "server_id": "5f3a9c0d2b71", "server_us": 1799999940000000, "role": "server", "limits": map[string]any{}, "shards": m.shards}
			if operation != "hello" && operation != "ping" {
				result = serve(operation)
			}
			if dead = result == nil; dead {
				return
			}
			_, failed := result["error"]
			p.answer(id, !failed, result)
		}
	})
	return m
}

func notPrimary(primary string) map[string]any {
	return map[string]any{"error": NotPrimary, "message": "b is a standby", "retry_after_ms": 1, "primary": primary}
}

func TestAClientGoesToThePrimaryThatAStandbyNames(t *testing.T) {
	primary := begin(t, func(string) map[string]any {
		return map[string]any{"subjects": []string{"s"}, "next": 1, "more": false}
	})
	standby := begin(t, func(string) map[string]any { return notPrimary(primary.address) })
	client := dialed(t, standby.address, Options{Retries: 1})
	for n := 0; n < 2; n++ {
		if _, err := client.Subjects(patient(t), SubjectQuery{}); err != nil {
			t.Fatal(err)
		}
	}
	if client.Address() != primary.address || standby.count("subjects") != 1 || primary.count("subjects") != 2 {
		t.Fatalf("at %s; %d and %d requests", client.Address(), standby.count("subjects"), primary.count("subjects"))
	}
}

func TestAClientOfOneShardOfSeveralSaysSoInsteadOfAPart(t *testing.T) {
	serve := func(string) map[string]any {
		return map[string]any{"subjects": []string{"s"}, "next": 1, "more": false}
	}
	m, other := begin(t, serve), begin(t, serve)
	m.shards, other.shards = 2, 2
	client := dialed(t, m.address, Options{})
	if _, err := client.Subjects(patient(t), SubjectQuery{}); !errors.Is(err, ErrSeveralShards) {
		t.Fatal(err)
	}
	if _, err := client.PendingBySubject(patient(t)); !errors.Is(err, ErrSeveralShards) || m.count("pending") != 0 {
		t.Fatal(err)
	}
	one := dialed(t, other.address, Options{OneShard: true})
	if page, err := one.Subjects(patient(t), SubjectQuery{}); err != nil || len(page.Subjects) != 1 {
		t.Fatal(page, err)
	}
}

func TestAClientLooksForThePrimaryOftenerThanItRepeats(t *testing.T) {
	var lock sync.Mutex
	left := 8 // so often both say that they do not know who leads
	serve := func(string) map[string]any {
		lock.Lock()
		defer lock.Unlock()
		if left--; left >= 0 {
			return notPrimary("")
		}
		return map[string]any{"subjects": []string{}, "next": 0, "more": false}
	}
	one, two := begin(t, serve), begin(t, serve)
	client := dialed(t, one.address+","+two.address, Options{Retries: 1})
	if _, err := client.Subjects(patient(t), SubjectQuery{}); err != nil {
		t.Fatal(err)
	}
	if one.count("subjects") < 4 || two.count("subjects") < 4 {
		t.Fatalf("%d and %d requests: it looks at both", one.count("subjects"), two.count("subjects"))
	}
	alone := dialed(t, begin(t, func(string) map[string]any { return notPrimary("") }).address, Options{Retries: -1})
	if _, err := alone.Subjects(patient(t), SubjectQuery{}); !errors.Is(err, NotPrimary) {
		t.Fatalf("%v: a client that repeats nothing says so at once", err)
	}
}

func TestAPublishWhosePrimaryDiesIsInDoubtAndTheNextCallGoesOnAtAnother(t *testing.T) {
	dies := begin(t, func(string) map[string]any { return nil })
	lives := begin(t, func(string) map[string]any { return map[string]any{"subjects": []string{}, "next": 0, "more": false} })
	client := dialed(t, dies.address+","+lives.address, Options{})
	_, err := client.Publish(patient(t), &Message{Subject: "s", Body: []byte("x")})
	var without *NoReplyError
	if !errors.As(err, &without) || !without.MaybeDone {
		t.Fatalf("%v: nobody knows whether it was stored", err)
	}
	if _, err := client.Subjects(patient(t), SubjectQuery{}); err != nil || lives.count("subjects") != 1 {
		t.Fatal(err, lives.count("subjects"))
	}
}
