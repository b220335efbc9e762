// Command example sends one message that is due in a second, and receives it. Run it beside `delayserver serve`.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	delayserver "delayserver.internal/ops/clients/go"
)

func main() {
	address := "127.0.0.1:20801"
	if len(os.Args) > 1 {
		address = os.Args[1]
	}
	if err := run(address); err != nil {
		log.Fatal(err)
	}
}

func run(address string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client, err := delayserver.Dial(ctx, address, delayserver.Options{Name: "example"})
	if err != nil {
		return err
	}
	defer client.Close()
	sent, err := client.Send(ctx, &delayserver.Message{Subject: "orders", Body: []byte("hi"), Delay: time.Second})
	if err != nil {
		return err
	}
	fmt.Println("sent", sent.Receipt)
	messages, err := client.Pull(ctx, delayserver.Pull{Subject: "orders", Group: "billing", Wait: 30 * time.Second})
	if err != nil {
		return err
	}
	for _, message := range messages {
		fmt.Printf("received %q %s\n", message.Body, message.ID)
	}
	if _, err := client.Ack(ctx, messages...); err != nil {
		return err
	}
	return nil
}
