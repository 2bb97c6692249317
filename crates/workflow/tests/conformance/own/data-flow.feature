Feature: Data Flow
  What goes into tasks and comes out of them

  Scenario: The input of a task is filtered
    Given a workflow with definition:
    """yaml
    document: { dsl: '1.0.3', namespace: default, name: data, version: '1.0.0' }
    do:
      - setName:
          input: { from: '${ .user.claims.subject }' }
          set: { playerId: '${ . }' }
    """
    And given the workflow input is:
    """yaml
    user: { claims: { subject: 6AsnRgGEB02L0z8gDVwzaO }, other: 1 }
    """
    When the workflow is executed
    Then the workflow should complete with output:
    """yaml
    playerId: 6AsnRgGEB02L0z8gDVwzaO
    """

  Scenario: The output of a task is filtered
    Given a workflow with definition:
    """yaml
    document: { dsl: '1.0.3', namespace: default, name: data, version: '1.0.0' }
    do:
      - getPet:
          call: http
          with: { method: get, endpoint: 'https://pets.example/pet/{id}' }
          output: { as: '{ petId: .id, of: $input.id }' }
    """
    And given the workflow input is:
    """yaml
    id: 7
    """
    And calls of 'https://pets.example/pet/7' answer 200:
    """yaml
    { id: 7, name: Rex }
    """
    When the workflow is executed
    Then the workflow should complete with output:
    """yaml
    { petId: 7, of: 7 }
    """

  Scenario: What is exported is there for all tasks that come
    Given a workflow with definition:
    """yaml
    document: { dsl: '1.0.3', namespace: default, name: data, version: '1.0.0' }
    input: { from: .order }
    output: { as: '{ total: .total }' }
    do:
      - price: { set: { price: 3 }, export: { as: '${ $context + {price: .price} }' } }
      - amount: { set: { amount: 4 }, export: { as: '${ $context + {amount: .amount} }' } }
      - total: { set: { total: '${ $context.price * $context.amount * $workflow.input.order.times }', more: 1 } }
    """
    And given the workflow input is:
    """yaml
    order: { times: 2 }
    """
    When the workflow is executed
    Then the workflow should complete with output:
    """yaml
    total: 24
    """
